"""`lakestream broker`, hidden: one broker in this process, as the supervisor starts it."""

import logging
import os
import sys
from typing import Any

import click

from lakestream.cli.options import SettingsCommand, loaded_settings
from lakestream.errors import Corrupt, Halted, Unusable
from lakestream.process import logs
from lakestream.process.ports import check_exposure
from lakestream.process.readiness import GIVE_UP, NO_STORE
from lakestream.process.umask import apply_umask
from lakestream.settings import CHILD_VARIABLE, from_json, known_secrets


@click.command(cls=SettingsCommand, hidden=True)
@click.option("--id", "broker_id", type=click.IntRange(min=0), required=True, help="The broker's id.")
@click.option("--ready-fd", type=click.IntRange(min=0), help="File descriptor on which the broker reports its ports.")
@click.option("--log-socket", default="", help="Socket on which this broker offers its command log to the pipeline.")
def broker(broker_id: int, ready_fd: int | None, log_socket: str, **flags: Any) -> None:
    """Run one broker until SIGTERM. The supervisor passes the settings on; without it they are given as to `serve`."""
    inherited = os.environ.pop(CHILD_VARIABLE, None)
    settings = from_json(inherited) if inherited else loaded_settings(flags).settings
    check_exposure(settings)
    apply_umask(settings.umask)
    secrets = known_secrets(settings, os.environ)
    logs.configure(settings.log_level, settings.log_format, {"broker": broker_id}, secrets=secrets)
    from lakestream.assembly.broker import run

    try:
        sys.exit(run(settings, broker_id, ready_fd, log_socket))
    except (Corrupt, Halted, Unusable) as error:
        logging.getLogger(__name__).critical("cannot start: %s", error)
        sys.exit(NO_STORE if isinstance(error, Unusable) else GIVE_UP)

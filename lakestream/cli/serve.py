"""`lakestream serve`: brokers as child processes, until a signal."""

import logging
import sys
from typing import Any

import click

from lakestream import logs, supervisor
from lakestream.cli.options import SettingsCommand, loaded_settings


@click.command(cls=SettingsCommand)
def serve(**flags: Any) -> None:
    """Start brokers and keep them running.

    When all serve, one line `ready kafka=HOST:PORT,... http=HOST:PORT,...` is printed on standard output; logs go to
    standard error. SIGTERM or Ctrl-C lets the brokers finish their work, a second one does not.
    """
    loaded = loaded_settings(flags)
    settings = loaded.settings
    logs.configure(settings.log_level, settings.log_format)
    log = logging.getLogger("lakestream.serve")
    for name in loaded.ignored:
        log.warning("this variable names no setting", extra={"variable": name})
    log.info("starting", extra={"brokers": settings.brokers, "data": settings.data, "metadata": settings.metadata})
    sys.exit(supervisor.serve(settings))

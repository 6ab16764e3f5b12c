"""`lakestream serve`: brokers as child processes, until a signal."""

import logging
import sys
from typing import Any

import click

from lakestream import logs, supervisor
from lakestream.cli.options import SettingsCommand, loaded_settings
from lakestream.settings import Settings, SettingsError, unchosen_metadata


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
    check_catalog(settings)
    log.info("starting", extra={"brokers": settings.brokers, "data": settings.data, "metadata": settings.metadata})
    if (file := unchosen_metadata(settings)) is not None:
        log.warning(
            "the command log is %s on this machine, and %s is nothing without it: choose a safe place by --metadata",
            file, settings.data,
        )  # fmt: skip
    sys.exit(supervisor.serve(settings))


def check_catalog(settings: Settings) -> None:
    """That it can be reached is tried later, and again and again; that anybody knows it can be told at once."""
    if not (settings.tables and settings.catalog):
        return
    from lakestream.data.tables.other_catalog import address_of

    address = address_of(settings.catalog, settings.catalog_namespace, settings.catalog_properties)
    if address is not None and not address.all_properties().keys() & {"uri", "type", "py-catalog-impl"}:
        raise SettingsError(
            f"catalog: {settings.catalog!r} is no URI, PyIceberg's configuration has no catalog of this name, and "
            "catalog_properties tell neither its uri nor its type"
        )

"""`lakestream serve`: runs brokers as child processes until a signal."""

import logging
import os
import sys
from typing import Any

import click

from lakestream import supervisor
from lakestream.cli.options import SettingsCommand, loaded_settings
from lakestream.process import logs
from lakestream.process.ports import check_exposure
from lakestream.process.umask import apply_umask, open_to_others
from lakestream.redaction import mask_urls
from lakestream.settings import Settings, SettingsError, data_folder, known_secrets, unchosen_metadata


@click.command(cls=SettingsCommand)
def serve(**flags: Any) -> None:
    """Start brokers and keep them running.

    When all brokers serve, one line `ready kafka=HOST:PORT,... http=HOST:PORT,...` is printed on standard output; logs
    go to standard error. SIGTERM or Ctrl-C lets the brokers finish their work; a second one stops them at once.
    """
    loaded = loaded_settings(flags)
    settings = loaded.settings
    check_exposure(settings)
    apply_umask(settings.umask)
    logs.configure(settings.log_level, settings.log_format, secrets=known_secrets(settings, os.environ))
    log = logging.getLogger("lakestream.serve")
    for name in loaded.ignored:
        log.warning("this variable names no setting and is ignored", extra={"variable": name})
    check_catalog(settings)
    log.info("starting", extra={"brokers": settings.brokers, "data": settings.data, "metadata": settings.metadata})
    if (file := unchosen_metadata(settings)) is not None:
        log.warning(
            "the command log is %s on this machine, and the records in %s cannot be read without it: "
            "choose a safe place for it with --metadata",
            file, settings.data,
        )  # fmt: skip
    if (folder := data_folder(settings)) is not None and open_to_others(folder, settings.umask):
        log.warning("other users of this machine may read %s: run chmod 0700 on it, or allow it with --umask", folder)
    sys.exit(supervisor.serve(settings))


def check_catalog(settings: Settings) -> None:
    """Refuse a catalog that PyIceberg cannot find. Whether the catalog can be reached is tried later, repeatedly."""
    from lakestream.data.tables.stores.allowed_locations import allowed_locations

    allowed_locations(settings)
    if not (settings.tables and settings.catalog):
        return
    from lakestream.data.tables.iceberg.pyiceberg_catalog import address_of

    address = address_of(settings.catalog, settings.catalog_namespace, settings.catalog_properties)
    if address is not None and not address.all_properties().keys() & {"uri", "type", "py-catalog-impl"}:
        raise SettingsError(
            f"catalog: {mask_urls(settings.catalog)!r} is no URI, PyIceberg's configuration has no catalog of this "
            "name, and catalog_properties give neither its uri nor its type"
        )

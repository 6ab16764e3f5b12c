"""`lakestream pipeline`: lands topics in their tables with Spark until a signal."""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from lakestream.cli.options import SettingsCommand, loaded_settings, pairs
from lakestream.errors import LakestreamError, Unusable
from lakestream.process import logs
from lakestream.process.readiness import GIVE_UP
from lakestream.process.umask import apply_umask
from lakestream.redaction import secrets_in
from lakestream.settings import CHILD_VARIABLE, Settings, data_uri, from_json, known_secrets

log = logging.getLogger("lakestream.pipeline")


@click.command(cls=SettingsCommand)
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs: local[N], spark://, yarn, k8s://.")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; may be given several times.")
@click.option("--conf-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="A file with settings of Spark, one NAME=VALUE a line; keeps keys out of the list of processes.")
@click.option("--freshness-ms", default=5000, show_default=True, help="How long records may wait before they land.")
@click.option("--once", is_flag=True, help="Land the records that wait now, then stop.")
@click.option("--member-id", type=click.IntRange(min=0), help="The pipeline's id in the cluster.", hidden=True)
@click.option("--ready-fd", type=click.IntRange(min=0), help="File descriptor for the readiness report.", hidden=True)
def pipeline(
    master: str, conf: tuple[str, ...], conf_file: Path | None, freshness_ms: int, once: bool, member_id: int | None,
    ready_fd: int | None, **flags: Any,
) -> None:  # fmt: skip
    """Land topics in their Iceberg tables with Spark.

    `lakestream serve` runs a pipeline by itself. Run this command to use a Spark cluster: this pipeline takes over, and
    gives back when it stops. Give the brokers' `--data`, and their command log as `--metadata`.
    """
    inherited = os.environ.pop(CHILD_VARIABLE, None)
    settings = from_json(inherited) if inherited else loaded_settings(flags).settings
    apply_umask(settings.umask)
    spark_conf = {**conf_in(conf_file), **pairs(conf, "--conf")}
    secrets = [*known_secrets(settings, os.environ), *secrets_in(spark_conf)]
    logs.configure(settings.log_level, settings.log_format, {"pipeline": master}, secrets=secrets)
    from lakestream.data.tables.iceberg.pyiceberg_catalog import address_of
    from lakestream.data.tables.iceberg.snapshot_history import DAY_MS, HOUR_MS, MINUTE_MS, SnapshotHistory
    from lakestream.pipeline.care.caretaker import CareSchedule
    from lakestream.pipeline.care.plan import CareLimits
    from lakestream.pipeline.landing.freshness import FreshnessLimits
    from lakestream.pipeline.service import MEMBER_ID, ServiceOptions
    from lakestream.pipeline.spark.java import NoJava

    options = ServiceOptions(
        root=data_uri(settings),
        master=master,
        member_id=MEMBER_ID if member_id is None else member_id,
        conf=spark_conf,
        catalog=address_of(settings.catalog, settings.catalog_namespace, settings.catalog_properties),
        freshness=FreshnessLimits(freshness_s=freshness_ms / 1000),
        care=CareLimits(
            small_files=settings.table_small_files,
            target_bytes=settings.table_file_bytes,
            large_bytes=settings.table_file_bytes // 2,
            task_bytes=max(settings.table_file_bytes // 2, 64 << 20),
        ),
        schedule=CareSchedule(enabled=settings.table_care, others_ms=settings.table_orphans_ms),
        history=SnapshotHistory(
            all_ms=settings.table_history_ms,
            tiers=(
                (settings.table_history_minutes_ms, MINUTE_MS),
                (settings.table_history_hours_ms, HOUR_MS),
                (settings.table_history_days_ms, DAY_MS),
            ),
            removed_ms=settings.table_history_removed_ms,
        ),
        drain_s=settings.drain_ms / 1000,
        once=once,
    )
    try:
        code = asyncio.run(_run(settings, options, ready_fd))
    except NoJava as error:
        log.critical("%s", error)
        code = GIVE_UP
    except LakestreamError as error:
        log.critical("the pipeline stops: %s", error)
        code = 1
    sys.exit(code)


def conf_in(file: Path | None) -> dict[str, str]:
    """Settings of Spark from a file of lines NAME=VALUE; lines that begin with # are comments."""
    lines = [line.strip() for line in file.read_text().splitlines()] if file is not None else []
    return pairs(tuple(line for line in lines if line and not line.startswith("#")), "--conf-file")


async def _run(settings: Settings, options: Any, ready_fd: int | None) -> int:
    from dataclasses import replace

    from lakestream.assembly.command_log import open_command_log
    from lakestream.assembly.core import timing
    from lakestream.assembly.wal import open_wal
    from lakestream.pipeline.service import Pipeline
    from lakestream.process.clock import SystemClock, system_random
    from lakestream.process.readiness import Announcement, announce

    def ready() -> None:
        if ready_fd is not None:
            announce(ready_fd, Announcement(options.member_id, "", "", os.getpid()))

    try:
        command_log, wal = await open_command_log(settings), await open_wal(settings)
    except OSError as error:
        raise Unusable(f"the command log or the data cannot be opened: {error}") from error
    try:
        running = Pipeline(command_log, wal, SystemClock(), system_random(), replace(options, timing=timing(settings)))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.stop)
        return await running.run(ready)
    finally:
        await wal.close()
        await command_log.close()

"""`lakestream metadata skip`: skips a command that no broker can fold, while all brokers are stopped."""

import asyncio
import json
from typing import Any

import click

from lakestream.assembly.command_log import log_file, open_repairable_log
from lakestream.cli.options import SettingsCommand, loaded_settings
from lakestream.errors import LakestreamError
from lakestream.process.umask import apply_umask
from lakestream.settings import Settings, SettingsError
from lakestream.supervisor import locked


@click.command(cls=SettingsCommand)
@click.argument("sequence", type=click.IntRange(min=1))
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def skip(sequence: int, yes: bool, **flags: Any) -> None:
    """Skip a command that stops every broker.


    A broker that cannot fold a command halts and names the command: either its version is too old to know the command,
    or its code has a fault. Upgrade first. If no version helps, stop all brokers and skip the command; its effect is
    lost. A command that this version can fold is never skipped. Give the settings of `serve`: they say where the
    command log is.
    """
    settings = loaded_settings(flags).settings
    apply_umask(settings.umask)
    path = log_file(settings)
    if path is not None and not path.exists():
        raise SettingsError(f"there is no command log at {path}: give the same --data and --metadata as to `serve`")
    with locked(settings):
        asyncio.run(_skip(settings, sequence, yes))


async def _skip(settings: Settings, sequence: int, yes: bool) -> None:
    from lakestream.assembly.wal import open_wal
    from lakestream.metadata import skipping
    from lakestream.metadata.describe import describe_command

    command_log = await open_repairable_log(settings)
    wal = await open_wal(settings)
    try:
        stuck = skipping.wanted(await skipping.find_stuck(command_log, wal), sequence)
        click.echo(f"command {sequence} stops every broker: {stuck.reason}")
        click.echo(json.dumps(describe_command(sequence, stuck.command)))
        if not yes and not click.confirm("Skip this command? Its effect is lost."):
            raise LakestreamError("nothing was changed")
        await skipping.skip(command_log, stuck)
        click.echo(f"command {sequence} is skipped")
        if (following := await skipping.find_stuck(command_log, wal)) is not None:
            click.echo(f"command {following.sequence} stops the brokers too: {following.reason}")
    finally:
        await command_log.close()
        await wal.close()

"""The command `lakestream`. Each subcommand lives in a module of its own that is imported only when it is used."""

import errno
import importlib
import os
import sys
from typing import Final

import click

from lakestream.cli.options import HelpfulGroup, group_bootstrap_option

COMMANDS: Final = {
    "serve": ("lakestream.cli.serve:serve", "Start brokers and keep them running."),
    "topics": ("lakestream.cli.topics:topics", "List, create, describe, alter and delete topics."),
    "produce": ("lakestream.cli.produce:produce", "Write lines of standard input as records of a topic."),
    "consume": ("lakestream.cli.consume:consume", "Print the records of a topic."),
    "groups": ("lakestream.cli.groups:groups", "List and describe consumer groups, and reset their offsets."),
    "tables": ("lakestream.cli.tables:tables", "List the tables of topics and their lag, and take care of them."),
    "pipeline": ("lakestream.cli.pipeline:pipeline", "Land topics in their tables with Spark."),
    "verify": ("lakestream.cli.verify:verify", "Check that every record is still there, once and unchanged."),
    "sql": ("lakestream.cli.sql:sql", "Query topics with SQL (DuckDB), including records not yet in their table."),
    "brokers": ("lakestream.cli.brokers:brokers", "List the live brokers."),
    "metadata": ("lakestream.cli.metadata:metadata", "Show the cluster's state, and follow its commands."),
    "config": ("lakestream.cli.config:config", "List every setting, its value and where it came from."),
}
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""The errors of a disk that takes no more output."""
HIDDEN: Final = {"broker": "lakestream.cli.broker:broker"}


class _LazyGroup(HelpfulGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = HIDDEN.get(cmd_name) or COMMANDS.get(cmd_name, ("",))[0]
        if not place:
            return None
        module, _, name = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from importlib.metadata import PackageNotFoundError, version

        try:
            click.echo(f"lakestream {version('lakestream')}")
        except PackageNotFoundError:
            click.echo("lakestream (not installed as a package)")
        ctx.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
@group_bootstrap_option
def cli() -> None:
    """A Kafka-compatible broker without leaders and without broker disks.

    Start with `lakestream serve`; settings come from flags, LAKESTREAM_* variables and lakestream.toml
    (`lakestream config` lists them all).
    """


def main() -> None:
    """Run a command. An expected failure ends with one line that says what to do, any other one with a trace."""
    from lakestream.errors import LakestreamError
    from lakestream.process import kernel_cache
    from lakestream.settings import SettingsError

    kernel_cache.choose(os.environ)
    try:
        try:
            cli.main(prog_name="lakestream", standalone_mode=True)
        finally:
            # Flushed here, since the interpreter's own flush at exit would print a trace of a failure.
            if sys.stdout is not None:
                sys.stdout.flush()
    except SettingsError as error:
        _fail(str(error), 2)
    except LakestreamError as error:
        _fail(str(error), 1)
    except BrokenPipeError:
        # The reader of our output, `head` for example, has ended.
        _leave_output()
        sys.exit(1)
    except OSError as error:
        if error.errno not in NO_ROOM or error.filename is not None:
            raise
        _leave_output()
        _fail(f"cannot write the output: {error.strerror}", 1)


def _leave_output() -> None:
    """Give the interpreter a place to flush to, so that it prints no error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> None:
    click.echo(f"{click.style('error:', fg='red', bold=True)} {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()

"""Options that several commands share; those of settings are made from the table in settings.py."""

import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, TypeVar

import click
from click.core import ParameterSource

from lakestream.assembly.command_log import check_command_log
from lakestream.settings import (
    BOOTSTRAP_VARIABLE,
    DEFAULT_BOOTSTRAP,
    FILE_FLAG,
    FILE_SUFFIX,
    Loaded,
    Setting,
    is_secret_file,
    load,
    table,
)

F = TypeVar("F", bound=Callable[..., Any])


class SettingsCommand(click.Command):
    """A command that takes every setting as a flag; its help shows them in groups by subject."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(click.Option(["--config", "config_file"], metavar="FILE", help="A TOML file with settings."))
        for row in table().values():
            self.params.append(_flag(row))
            if row.secret:
                self.params.append(_file_flag(row))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = table()
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                row = rows.get((param.name or "").removesuffix(FILE_SUFFIX) if is_settings_flag(param.name) else "")
                group = row.group if row is not None else "Options"
                sections.setdefault(group, []).append(record)
        for group, records in sections.items():
            with formatter.section(group):
                formatter.write_dl(records)


def loaded_settings(flags: Mapping[str, Any]) -> Loaded:
    """The settings of a SettingsCommand's arguments."""
    settings = {name: value for name, value in flags.items() if is_settings_flag(name)}
    loaded = load(settings, os.environ, flags.get("config_file"))
    check_command_log(loaded.settings)
    return loaded


def is_settings_flag(name: str | None) -> bool:
    """Whether an argument of a SettingsCommand is a setting, or names the file of a secret setting."""
    rows = table()
    return name is not None and (name in rows or is_secret_file(name, rows))


BOOTSTRAP_HELP = "Addresses of brokers, separated by commas; one of them has to answer."
GROUP_BOOTSTRAP = "lakestream.bootstrap"
"""The key under which a click context keeps a `--bootstrap` given before the command."""


def bootstrap_option(function: F) -> F:
    """`--bootstrap` of a command. Without it, one given before the command counts."""
    return click.option(
        "--bootstrap", "-b", metavar="HOST:PORT", envvar=BOOTSTRAP_VARIABLE, default=DEFAULT_BOOTSTRAP,
        show_default=True, show_envvar=True, callback=_own_or_group_bootstrap, help=BOOTSTRAP_HELP,
    )(function)  # fmt: skip


def group_bootstrap_option(function: F) -> F:
    """`--bootstrap` of a group of commands, which all of them take over."""
    return click.option(
        "--bootstrap", "-b", metavar="HOST:PORT", expose_value=False, callback=_remember, help=BOOTSTRAP_HELP
    )(function)


def _remember(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta[GROUP_BOOTSTRAP] = value


def _own_or_group_bootstrap(context: click.Context, parameter: click.Parameter, value: str) -> str:
    assert parameter.name is not None
    if context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
        return value
    return str(context.meta.get(GROUP_BOOTSTRAP, value))


class HelpfulGroup(click.Group):
    """A group of commands whose error for an unknown command names similar ones."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            close = get_close_matches(args[0], names)
            meant = f" Did you mean {' or '.join(close)}?" if close else f" The commands are {', '.join(names)}."
            ctx.fail(f"No such command {args[0]!r}.{meant}")
        return super().resolve_command(ctx, args)


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)


def pairs(values: tuple[str, ...], flag: str) -> dict[str, str]:
    """The NAME=VALUE arguments of a repeated flag, as a dictionary."""
    found: dict[str, str] = {}
    for value in values:
        name, equals, rest = value.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{flag} takes NAME=VALUE, not {value!r}")
        found[name] = rest
    return found


def _flag(row: Setting) -> click.Option:
    default = str(row.default).lower() if row.kind is bool else str(row.default)
    text = f"{row.doc}  [{default or 'empty'}]"
    if row.kind is bool:
        return click.Option([f"{row.flag}/--no-{row.flag[2:]}", row.name], default=None, help=text)
    kind = click.Choice(row.choices, case_sensitive=False) if row.choices else None
    return click.Option([row.flag, row.name], type=kind, metavar=None if kind else _metavar(row), help=text)


def _file_flag(row: Setting) -> click.Option:
    text = f"Read {row.name} from this file, which keeps it out of the list of processes.  [empty]"
    return click.Option([row.flag + FILE_FLAG, row.name + FILE_SUFFIX], metavar="FILE", help=text)


def _metavar(row: Setting) -> str:
    if row.kind is str:
        return {"data": "DIR_OR_URL", "metadata": "URL"}.get(row.name, "TEXT")
    return "BYTES" if row.name.endswith("_bytes") else "MS" if row.name.endswith("_ms") else "N"


class Duration(click.ParamType[int]):
    """A time span such as 90s, 1h or 3d, in milliseconds; a number without a unit is milliseconds."""

    name = "duration"
    UNITS: ClassVar = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+)\s*([a-z]*)", str(value).strip().lower())
        if match is None or match[2] not in self.UNITS:
            self.fail(f"{value!r} is not a time span; write 90s, 5m, 1h or 3d", param, ctx)
        return int(match[1]) * int(self.UNITS[match[2]])

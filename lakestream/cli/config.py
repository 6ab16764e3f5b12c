"""`lakestream config`: every setting, its value and where it came from."""

from typing import Any

import click

from lakestream.cli.options import SettingsCommand, json_option, loaded_settings
from lakestream.cli.output import print_json, print_table, say
from lakestream.settings import Setting, Settings, table


@click.command(cls=SettingsCommand)
@json_option
@click.option("--markdown", is_flag=True, help="Print the table of settings as documentation.")
def config(as_json: bool, markdown: bool, **flags: Any) -> None:
    """List every setting, its value, and where the value came from: a flag, a variable, a file or the default."""
    if markdown:
        click.echo(markdown_table(), nl=False)
        return
    loaded = loaded_settings(flags)
    listed = [(row, _value(row, loaded.settings), loaded.origins[row.name]) for row in table().values()]
    if as_json:
        print_json([
            {"name": row.name, "value": value, "origin": origin, "default": row.default, "doc": row.doc,
             "flag": row.flag, "variable": row.variable, "secret": row.secret != ""}
            for row, value, origin in listed
        ])  # fmt: skip
        return
    print_table(("setting", "value", "from", "meaning"), [(r.name, r.shown(v), o, r.doc) for r, v, o in listed])
    for name in loaded.ignored:
        say(f"warning: {name} names no setting and is ignored")


def markdown_table() -> str:
    """The settings as the table in docs/OPERATIONS.md."""
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for row in table().values():
        default = f"`{row.shown(row.default)}`" if row.default != "" else ""
        lines.append(f"| `{row.name}` | {default} | {row.doc} |")
    return "\n".join(lines) + "\n"


def _value(row: Setting, settings: Settings) -> object:
    """A setting's value, with secret parts masked."""
    value = getattr(settings, row.name)
    return row.shown(value) if isinstance(value, str) else value

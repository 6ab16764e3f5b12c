"""`lakestream metadata`: shows the state of the cluster and follows its commands, by a broker's HTTP port."""

import json
import urllib.parse
from collections.abc import Iterator
from typing import Any

import click

from lakestream.cli.client.broker_http import find_http_address, get, read_body
from lakestream.cli.options import HelpfulGroup, bootstrap_option, group_bootstrap_option, json_option
from lakestream.cli.output import print_json, print_table
from lakestream.cli.skip import skip

WAIT_MS = 10_000


@click.group(cls=HelpfulGroup)
@group_bootstrap_option
def metadata() -> None:
    """Show the cluster's state, and follow its commands."""


@metadata.command()
@json_option
@click.option("--http", "address", metavar="HOST:PORT", help="A broker's HTTP port. Default: found by --bootstrap.")
@bootstrap_option
def show(bootstrap: str, address: str | None, as_json: bool) -> None:
    """Show the state of the cluster after all commands so far."""
    with get(address or find_http_address(bootstrap), "/metadata") as answer:
        state = json.loads(answer.read())
    if as_json:
        print_json(state)
        return
    simple = {key: value for key, value in state.items() if not isinstance(value, list | dict)}
    if simple:
        print_table(("name", "value"), [(key, _cell(value)) for key, value in simple.items()])
    for key, value in state.items():
        if isinstance(value, list | dict) and value:
            _show_part(key, value)


@metadata.command()
@json_option
@click.option("--after", type=click.IntRange(min=0), help="Begin after this sequence. Default: with new commands.")
@click.option("--max-commands", "-n", type=click.IntRange(min=1), help="Stop after this number of commands.")
@click.option("--http", "address", metavar="HOST:PORT", help="A broker's HTTP port. Default: found by --bootstrap.")
@bootstrap_option
def follow(bootstrap: str, address: str | None, after: int | None, max_commands: int | None, as_json: bool) -> None:
    """Print commands as they are folded, one per line, until Ctrl-C."""
    address = address or find_http_address(bootstrap)
    if after is None:
        with get(address, "/metadata") as answer:
            after = int(json.loads(answer.read()).get("sequence", 0))
    try:
        for count, command in enumerate(_commands(address, after), 1):
            _show_command(command, as_json)
            if count == max_commands:
                return
    except KeyboardInterrupt:
        return


def _commands(address: str, after: int) -> Iterator[dict[str, Any]]:
    """Yield commands page by page, without end: a broker waits up to WAIT_MS for the next command."""
    while True:
        asked = urllib.parse.urlencode({"after": after, "wait_ms": WAIT_MS})
        for line in read_body(address, f"/metadata/commands?{asked}").splitlines():
            command = json.loads(line)
            after = command["sequence"]
            yield command


metadata.add_command(skip)


def _show_part(name: str, part: Any) -> None:
    """Print a list of objects, or an object of objects, as a table with a column for every field."""
    if isinstance(part, dict):
        part = [{"name": key, **(one if isinstance(one, dict) else {"value": one})} for key, one in part.items()]
    columns = list(dict.fromkeys(key for one in part if isinstance(one, dict) for key in one))
    if not columns:
        print_table((name,), [(_cell(one),) for one in part])
        return
    print_table(columns, [[_cell(one.get(column)) for column in columns] for one in part], title=name)


def _show_command(command: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(command))
        return
    rest = {key: value for key, value in command.items() if key not in ("sequence", "command")}
    details = " ".join(f"{key}={_cell(value)}" for key, value in rest.items())
    kind = click.style(f"{command.get('command', ''):18}", bold=True)
    click.echo(f"{command.get('sequence', ''):>8}  {kind}  {details}")


def _cell(value: Any) -> str | int | None:
    """A value as a cell of a table. A list of objects becomes its length; `--json` prints the whole list."""
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return len(value)
    if isinstance(value, bool | float | list | dict):
        return json.dumps(value) if value not in ([], {}) else None
    assert value is None or isinstance(value, str | int), "JSON has no other types"
    return value

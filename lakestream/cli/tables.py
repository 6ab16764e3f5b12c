"""`lakestream tables`: lists the tables of topics and their lag, and requests care, by a broker's HTTP port."""

import sys
import time
import urllib.parse
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from lakestream.cli.client.broker_http import UnknownPath, find_http_address, get_json, post_json
from lakestream.cli.options import Duration, HelpfulGroup, bootstrap_option, json_option
from lakestream.cli.output import Cell, print_json, print_table, say, size_text, span_text
from lakestream.errors import LakestreamError, NoTables

F = TypeVar("F", bound=Callable[..., Any])
POLL_S = 0.3
AT_ONCE = 20
"""How many topics have a request at a time: a cluster holds a hundred requests, of all users together."""
NO_PIPELINE_S = 15.0
"""How long a command waits for a pipeline to start."""
FAILED, NOT_YET = 1, 2
"""Exit codes: a request failed; a request waits for a pipeline."""


def http_option(function: F) -> F:
    return click.option(
        "--http", "address", metavar="HOST:PORT", help="A broker's HTTP port. Default: found by --bootstrap."
    )(function)


def care_options(function: F) -> F:
    function = click.option("--no-wait", is_flag=True, help="Only note the request; do not wait for it.")(function)
    return json_option(http_option(bootstrap_option(function)))


class _TablesCommand(click.Command):
    """A command that takes over the options given to its group, unless it has its own."""

    def invoke(self, ctx: click.Context) -> Any:
        assert ctx.parent is not None
        for name, value in ctx.parent.params.items():
            if _was_typed(ctx.parent, name) and not _was_typed(ctx, name):
                ctx.params[name] = value
        return super().invoke(ctx)


def _was_typed(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


class _TablesGroup(HelpfulGroup):
    command_class = _TablesCommand


@click.group(cls=_TablesGroup, invoke_without_command=True)
@json_option
@http_option
@bootstrap_option
@click.pass_context
def tables(context: click.Context, bootstrap: str, address: str | None, as_json: bool) -> None:
    """List the tables of topics and their lag, and take care of them. Without a command: list."""
    if context.invoked_subcommand is None:
        _list(bootstrap, address, as_json)


@tables.command("list")
@json_option
@http_option
@bootstrap_option
def list_tables(bootstrap: str, address: str | None, as_json: bool) -> None:
    """List every topic's table with its lag and state.

    Shows rows and files, the records that wait to land and the age of the oldest, and what is wrong.
    """
    _list(bootstrap, address, as_json)


def _list(bootstrap: str, address: str | None, as_json: bool) -> None:
    listing = _tables(address or find_http_address(bootstrap))
    if as_json:
        print_json(listing)
        return
    if listing["tables"]:
        print_table(
            ("topic", "rows", "files", "waiting", "bytes waiting", "lag", "target", "last commit", "history", "state"),
            [_row(one, listing) for one in listing["tables"]],
        )
    else:
        say("there are no topics yet; create one with `lakestream topics create NAME`")
    _say_trouble(listing["pipeline"])


def _row(one: dict[str, Any], listing: dict[str, Any]) -> tuple[Cell, ...]:
    return (
        one["topic"], one.get("rows"), one.get("files"), one["records_waiting"], one["bytes_waiting"],
        span_text(one["lag_ms"]), span_text(one["freshness_ms"]), _ago(one.get("committed_ms"), listing),
        _age(one.get("oldest_snapshot_ms"), listing), _state(one, listing),
    )  # fmt: skip


def _ago(then_ms: int | None, listing: dict[str, Any]) -> str | None:
    age = _age(then_ms, listing)
    return None if age is None else f"{age} ago"


def _age(then_ms: int | None, listing: dict[str, Any]) -> str | None:
    return None if then_ms is None else span_text(max(listing["time_ms"] - then_ms, 0))


def _state(one: dict[str, Any], listing: dict[str, Any]) -> str:
    if not one["enabled"]:
        return "off (lakestream.table.enabled=false)"
    if one["held"]:
        return f"held: {one['held']}"
    if one.get("problem"):
        return str(one["problem"])
    if not listing["pipeline"]["running"] and one["records_waiting"]:
        return "waits for a pipeline"
    if one["lag_ms"] > 2 * one["freshness_ms"] + 5000:
        return "late"
    if one["uncared"]:
        return f"lands, but its care fails: {one['uncared']}"
    return f"ok; a request failed: {one['request_failed']}" if one.get("request_failed") else "ok"


def _say_trouble(pipeline: dict[str, Any]) -> None:
    if not pipeline["running"]:
        unknown = " (Spark takes some seconds to start; after a minute, see the log of `lakestream serve`)"
        why = f": {pipeline['trouble']}" if pipeline["trouble"] else unknown
        say(f"no pipeline runs, so no records land and tables get no care{why}")


@tables.command()
@click.argument("topic")
@json_option
@http_option
@bootstrap_option
def describe(topic: str, bootstrap: str, address: str | None, as_json: bool) -> None:
    """Show one topic's table, partition by partition."""
    listing = _tables(address or find_http_address(bootstrap), topic)
    if as_json:
        print_json(listing)
        return
    [one] = listing["tables"]
    about = {name: value for name, value in one.items() if name != "partitions"}
    about["state"] = _state(one, listing)
    for name in ("freshness_ms", "lag_ms"):
        about[name] = span_text(one[name])
    for name in ("landed_ms", "committed_ms", "oldest_snapshot_ms"):
        about[name] = _ago(one.get(name), listing)
    for name in ("pinned_bytes", "pinned_metadata_bytes"):
        if name in one:
            about[name] = size_text(one[name])
    print_table(("name", "value"), [(_words(name), _cell(value)) for name, value in about.items()])
    columns = ("partition", "start", "landed", "end", "waiting", "bytes_waiting")
    rows = [[part[column] for column in columns] for part in one["partitions"]]
    print_table([column.replace("_", " ") for column in columns], rows, title="partitions")
    _say_trouble(listing["pipeline"])


def _words(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ")


def _cell(value: object) -> Cell:
    return str(value).lower() if isinstance(value, bool) else value if isinstance(value, str | int) else None


def _tables(address: str, topic: str | None = None) -> dict[str, Any]:
    with _tables_are_on(address):
        listing: dict[str, Any] = get_json(address, f"/tables/{_quoted(topic)}" if topic is not None else "/tables")
    return listing


@contextmanager
def _tables_are_on(address: str) -> Iterator[None]:
    """Explain an unknown path: a broker that runs without tables serves none of these paths."""
    try:
        yield
    except UnknownPath:
        raise NoTables(address) from None


def _quoted(topic: str) -> str:
    return urllib.parse.quote(topic, safe="")


# -- care ------------------------------------------------------------------------------------------------------------


@tables.command()
@click.argument("topics", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Rewrite every file, large and sorted ones too.")
@care_options
def optimize(topics: tuple[str, ...], everything: bool, **how: Any) -> None:
    """Rewrite small files into large sorted ones. Leaves out deleted rows. Without TOPICS: all tables."""
    _care("optimize", topics, {"all": "true"} if everything else {}, **how)


@tables.command()
@click.argument("topics", nargs=-1)
@click.option("--older-than", type=Duration(), metavar="1h", help="Their age. Default: the history settings.")
@care_options
def expire(topics: tuple[str, ...], older_than: int | None, **how: Any) -> None:
    """Expire old snapshots. After a grace, deletes files that only they reach. Without TOPICS: all tables."""
    _care("expire", topics, {} if older_than is None else {"older_than_ms": str(older_than)}, **how)


@tables.command()
@click.argument("topics", nargs=-1)
@click.option("--older-than", type=Duration(), metavar="3d", help="Age of other writers' files. Default: 3 days.")
@click.option("--dry-run", is_flag=True, help="Count the files without deleting them.")
@care_options
def orphans(topics: tuple[str, ...], older_than: int | None, dry_run: bool, **how: Any) -> None:
    """Delete files that no snapshot reaches.

    Deletes the pipeline's own files, and old files of other writers. Without TOPICS: of all tables.
    """
    arguments = {} if older_than is None else {"older_than_ms": str(older_than)}
    _care("orphans", topics, arguments | ({"dry_run": "true"} if dry_run else {}), **how)


@tables.command()
@click.argument("topic")
@click.option("--where", required=True, metavar="SQL", help="The condition, in DuckDB's SQL on the table's columns.")
@care_options
def delete(topic: str, where: str, **how: Any) -> None:
    """Delete rows that meet a condition.

    Consumers do not get these records any more. Records that have not landed yet are not deleted.
    """
    _care("delete", (topic,), {"where": where}, **how)


@tables.command()
@click.argument("topics", nargs=-1)
@click.option("--accept-loss", is_flag=True, help="Drop lost files from the table, with their rows.")
@care_options
def repair(topics: tuple[str, ...], accept_loss: bool, **how: Any) -> None:
    """Check a table's files, and release its topic.

    Says what is wrong, and releases the topic only if all is well. Without TOPICS: all tables.
    """
    _care("repair", topics, {"accept_loss": "true"} if accept_loss else {}, **how)


@tables.command()
@click.argument("topics", nargs=-1, required=True)
@care_options
def release(topics: tuple[str, ...], **how: Any) -> None:
    """Let held topics land again without a check.

    If the cause is still there, the next round holds them again.
    """
    _care("release", topics, {}, **how)


def _care(
    kind: str, topics: Sequence[str], arguments: dict[str, str], *, bootstrap: str, address: str | None, as_json: bool,
    no_wait: bool,
) -> None:  # fmt: skip
    """Request care of each topic, AT_ONCE at a time, and wait for the answers. Exits with the worst exit code."""
    address = address or find_http_address(bootstrap)
    if not topics:
        topics = [one["topic"] for one in _tables(address)["tables"] if one["table"]]
    if not topics:
        say("there is no table yet")
    answers: list[dict[str, Any]] = []
    under_way: deque[dict[str, Any]] = deque()
    left = deque(topics)
    patience_s = 0.0 if no_wait else NO_PIPELINE_S
    while left or under_way:
        while left and len(under_way) < (1 if no_wait else AT_ONCE):
            with _tables_are_on(address):
                under_way.append(post_json(address, f"/tables/{_quoted(left.popleft())}/{kind}", arguments))
        one = under_way.popleft()
        if not no_wait:
            one = _await(address, one, as_json, patience_s)
        answers.append(one)
        if not as_json:
            click.echo(f"{one['topic']}: {_answer(one)}")
        if not no_wait and _code(one) == NOT_YET:
            # No pipeline runs. The requests stay noted; more of them would only fill the list of requests.
            patience_s = 0.0
            _say_not_requested(left)
    if as_json:
        print_json(answers)
    sys.exit(0 if no_wait else max(map(_code, answers), default=0))


def _code(one: dict[str, Any]) -> int:
    return 0 if one["status"] == "done" else FAILED if one["status"] == "failed" else NOT_YET


def _say_not_requested(left: "deque[str]") -> None:
    if left:
        say(f"{len(left):,} more topics, {left[0]} to {left[-1]}, have no request: run this again with a pipeline")
        left.clear()


def _answer(one: dict[str, Any]) -> str:
    figures = ", ".join(_figure(name, value) for name, value in one["figures"].items())
    parts = [one["status"] if one["status"] != "done" or not one["text"] else "", one["text"], figures]
    return "; ".join(part for part in parts if part)


def _figure(name: str, value: int) -> str:
    if name.endswith("bytes"):
        return f"{_words(name.removesuffix('bytes'))}{size_text(value)}"
    return f"{_words(name)} {value:,}"


def _await(address: str, one: dict[str, Any], as_json: bool, patience_s: float) -> dict[str, Any]:
    """Poll a request until it is done or failed, or until no pipeline has run for `patience_s`; its last status."""
    said, alone_s = "", 0.0
    while one["status"] not in ("done", "failed"):
        alone_s = 0.0 if one["pipeline"]["running"] else alone_s + POLL_S
        if alone_s and alone_s >= patience_s:
            if patience_s:
                _say_trouble(one["pipeline"])
            say(f"{one['topic']}: the request stays noted; the next pipeline does it")
            break
        if one["text"] and one["text"] != said and not as_json:
            said = one["text"]
            say(f"{one['topic']}: {said}")
        try:
            one = get_json(address, f"/care/{one['request']}")
        except LakestreamError as error:
            raise LakestreamError(f"the outcome of request {one['request']} is not known: {error}") from None
        if one["status"] not in ("done", "failed"):
            time.sleep(POLL_S)
    return one

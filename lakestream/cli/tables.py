"""`lakestream tables`: every topic's table, how far it is behind, and care of it, by a broker's HTTP port."""

import sys
import time
import urllib.parse
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from lakestream.cli.client.pages import get_json, post_json
from lakestream.cli.metadata import UnknownPath, find_page
from lakestream.cli.options import Duration, HelpfulGroup, bootstrap_option, json_option
from lakestream.cli.output import Cell, print_json, print_table, say, size_text, span_text
from lakestream.errors import LakestreamError, NoTables

F = TypeVar("F", bound=Callable[..., Any])
POLL_S = 0.3
AT_ONCE = 20
"""So many topics are asked for at a time: a cluster notes a hundred requests, of everybody."""
NO_PIPELINE_S = 15.0
"""How long a pipeline may be away while somebody waits for its work."""
DID_NOT, NOT_YET = 1, 2
"""Exit codes: some request failed; nobody has done it yet."""


def page_option(function: F) -> F:
    return click.option(
        "--http", "page", metavar="HOST:PORT", help="A broker's HTTP port; else the bootstrap broker's."
    )(function)


def care_options(function: F) -> F:
    function = click.option("--no-wait", is_flag=True, help="Only ask for it; do not wait until it is done.")(function)
    return json_option(page_option(bootstrap_option(function)))


class _Below(click.Command):
    """A command that takes the options given to its group, unless it was given its own."""

    def invoke(self, ctx: click.Context) -> Any:
        assert ctx.parent is not None
        for name, value in ctx.parent.params.items():
            if _was_typed(ctx.parent, name) and not _was_typed(ctx, name):
                ctx.params[name] = value
        return super().invoke(ctx)


def _was_typed(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


class _Above(HelpfulGroup):
    command_class = _Below


@click.group(cls=_Above, invoke_without_command=True)
@json_option
@page_option
@bootstrap_option
@click.pass_context
def tables(context: click.Context, bootstrap: str, page: str | None, as_json: bool) -> None:
    """List topics' tables and their lag, and take care of them. Without a command: list."""
    if context.invoked_subcommand is None:
        _list(bootstrap, page, as_json)


@tables.command("list")
@json_option
@page_option
@bootstrap_option
def list_tables(bootstrap: str, page: str | None, as_json: bool) -> None:
    """List every topic's table: what it holds, what waits, how old the oldest of that is, and what is wrong."""
    _list(bootstrap, page, as_json)


def _list(bootstrap: str, page: str | None, as_json: bool) -> None:
    told = _tables(page or find_page(bootstrap))
    if as_json:
        print_json(told)
        return
    if told["tables"]:
        print_table(
            ("topic", "rows", "files", "waiting", "bytes waiting", "lag", "target", "last commit", "history", "state"),
            [_row(one, told) for one in told["tables"]],
        )
    else:
        say("there are no topics yet; make one with `lakestream topics create NAME`")
    _say_trouble(told["pipeline"])


def _row(one: dict[str, Any], told: dict[str, Any]) -> tuple[Cell, ...]:
    return (
        one["topic"], one.get("rows"), one.get("files"), one["records_waiting"], one["bytes_waiting"],
        span_text(one["lag_ms"]), span_text(one["freshness_ms"]), _ago(one.get("committed_ms"), told),
        _age(one.get("oldest_snapshot_ms"), told), _state(one, told),
    )  # fmt: skip


def _ago(then_ms: int | None, told: dict[str, Any]) -> str | None:
    age = _age(then_ms, told)
    return None if age is None else f"{age} ago"


def _age(then_ms: int | None, told: dict[str, Any]) -> str | None:
    return None if then_ms is None else span_text(max(told["time_ms"] - then_ms, 0))


def _state(one: dict[str, Any], told: dict[str, Any]) -> str:
    if not one["enabled"]:
        return "off (lakestream.table.enabled=false)"
    if one["held"]:
        return f"held: {one['held']}"
    if one.get("problem"):
        return str(one["problem"])
    if not told["pipeline"]["running"] and one["records_waiting"]:
        return "waits for a pipeline"
    if one["lag_ms"] > 2 * one["freshness_ms"] + 5000:
        return "late"
    if one["uncared"]:
        return f"lands, but its care fails: {one['uncared']}"
    return f"ok; a request failed: {one['request_failed']}" if one.get("request_failed") else "ok"


def _say_trouble(pipeline: dict[str, Any]) -> None:
    if not pipeline["running"]:
        unknown = " (Spark takes some seconds to start; if it stays so, the log of `lakestream serve` may say why)"
        why = f": {pipeline['trouble']}" if pipeline["trouble"] else unknown
        say(f"no pipeline runs, so nothing lands and no care is taken{why}")


@tables.command()
@click.argument("topic")
@json_option
@page_option
@bootstrap_option
def describe(topic: str, bootstrap: str, page: str | None, as_json: bool) -> None:
    """Show one topic's table, partition by partition."""
    told = _tables(page or find_page(bootstrap), topic)
    if as_json:
        print_json(told)
        return
    [one] = told["tables"]
    about = {name: value for name, value in one.items() if name != "partitions"}
    about["state"] = _state(one, told)
    for name in ("freshness_ms", "lag_ms"):
        about[name] = span_text(one[name])
    for name in ("landed_ms", "committed_ms", "oldest_snapshot_ms"):
        about[name] = _ago(one.get(name), told)
    for name in ("pinned_bytes", "pinned_metadata_bytes"):
        if name in one:
            about[name] = size_text(one[name])
    print_table(("what", "value"), [(_words(name), _cell(value)) for name, value in about.items()])
    columns = ("partition", "start", "landed", "end", "waiting", "bytes_waiting")
    rows = [[part[column] for column in columns] for part in one["partitions"]]
    print_table([column.replace("_", " ") for column in columns], rows, title="partitions")
    _say_trouble(told["pipeline"])


def _words(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ")


def _cell(value: object) -> Cell:
    return str(value).lower() if isinstance(value, bool) else value if isinstance(value, str | int) else None


def _tables(page: str, topic: str | None = None) -> dict[str, Any]:
    with _tables_are_on(page):
        told: dict[str, Any] = get_json(page, f"/tables/{_quoted(topic)}" if topic is not None else "/tables")
    return told


@contextmanager
def _tables_are_on(page: str) -> Iterator[None]:
    """A broker without tables knows none of these pages."""
    try:
        yield
    except UnknownPath:
        raise NoTables(page) from None


def _quoted(topic: str) -> str:
    return urllib.parse.quote(topic, safe="")


# -- care ------------------------------------------------------------------------------------------------------------


@tables.command()
@click.argument("topics", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Rewrite every file, also those that are large and in order.")
@care_options
def optimize(topics: tuple[str, ...], everything: bool, **how: Any) -> None:
    """Rewrite small files into large sorted ones, without the rows that were deleted. No topic named: all."""
    _care("optimize", topics, {"all": "true"} if everything else {}, **how)


@tables.command()
@click.argument("topics", nargs=-1)
@click.option("--older-than", type=Duration(), metavar="1h", help="Which snapshots go; else as its history says.")
@care_options
def expire(topics: tuple[str, ...], older_than: int | None, **how: Any) -> None:
    """Forget old snapshots; files that only they reached are removed after a grace. No topic named: all."""
    _care("expire", topics, {} if older_than is None else {"older_than_ms": str(older_than)}, **how)


@tables.command()
@click.argument("topics", nargs=-1)
@click.option("--older-than", type=Duration(), metavar="3d", help="How old files of others have to be; else 3 days.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@care_options
def orphans(topics: tuple[str, ...], older_than: int | None, dry_run: bool, **how: Any) -> None:
    """Remove files that no snapshot reaches: ours at once, those of others when they are old. No topic named: all."""
    arguments = {} if older_than is None else {"older_than_ms": str(older_than)}
    _care("orphans", topics, arguments | ({"dry_run": "true"} if dry_run else {}), **how)


@tables.command()
@click.argument("topic")
@click.option("--where", required=True, metavar="SQL", help="Which rows, by the table's columns (DuckDB's SQL).")
@care_options
def delete(topic: str, where: str, **how: Any) -> None:
    """Delete the rows of a topic's table that fulfil a condition: from the table and for consumers.

    Records that have not landed yet are not touched.
    """
    _care("delete", (topic,), {"where": where}, **how)


@tables.command()
@click.argument("topics", nargs=-1)
@click.option("--accept-loss", is_flag=True, help="Give up the rows of files that are lost for good.")
@care_options
def repair(topics: tuple[str, ...], accept_loss: bool, **how: Any) -> None:
    """Look at everything that a table consists of, say what is wrong, and release the topic if nothing is."""
    _care("repair", topics, {"accept_loss": "true"} if accept_loss else {}, **how)


@tables.command()
@click.argument("topics", nargs=-1, required=True)
@care_options
def release(topics: tuple[str, ...], **how: Any) -> None:
    """Let held topics land again, without looking what held them. The next round tells if it is still wrong."""
    _care("release", topics, {}, **how)


def _care(
    kind: str, topics: Sequence[str], arguments: dict[str, str], *, bootstrap: str, page: str | None, as_json: bool,
    no_wait: bool,
) -> None:  # fmt: skip
    """Ask for it for each topic, a few at a time, until all is done. Exits with the worst that happened."""
    page = page or find_page(bootstrap)
    if not topics:
        topics = [one["topic"] for one in _tables(page)["tables"] if one["table"]]
    if not topics:
        say("there is no table yet")
    answers: list[dict[str, Any]] = []
    under_way: deque[dict[str, Any]] = deque()
    left = deque(topics)
    patience_s = 0.0 if no_wait else NO_PIPELINE_S
    while left or under_way:
        while left and len(under_way) < (1 if no_wait else AT_ONCE):
            with _tables_are_on(page):
                under_way.append(post_json(page, f"/tables/{_quoted(left.popleft())}/{kind}", arguments))
        one = under_way.popleft()
        if not no_wait:
            one = _await(page, one, as_json, patience_s)
        answers.append(one)
        if not as_json:
            click.echo(f"{one['topic']}: {_answer(one)}")
        if not no_wait and _code(one) == NOT_YET:
            # Nobody is there: what was asked for stays noted, and more would only fill the place where it is noted.
            patience_s = 0.0
            _say_not_asked(left)
    if as_json:
        print_json(answers)
    sys.exit(0 if no_wait else max(map(_code, answers), default=0))


def _code(one: dict[str, Any]) -> int:
    return 0 if one["status"] == "done" else DID_NOT if one["status"] == "failed" else NOT_YET


def _say_not_asked(left: "deque[str]") -> None:
    if left:
        say(f"nothing was asked for {len(left):,} more topics, {left[0]} to {left[-1]}")
        left.clear()


def _answer(one: dict[str, Any]) -> str:
    figures = ", ".join(_figure(name, value) for name, value in one["figures"].items())
    parts = [one["status"] if one["status"] != "done" or not one["text"] else "", one["text"], figures]
    return "; ".join(part for part in parts if part)


def _figure(name: str, value: int) -> str:
    if name.endswith("bytes"):
        return f"{_words(name.removesuffix('bytes'))}{size_text(value)}"
    return f"{_words(name)} {value:,}"


def _await(page: str, one: dict[str, Any], as_json: bool, patience_s: float) -> dict[str, Any]:
    """The last answer: done or failed; or as it is when nobody is there to do it."""
    said, alone_s = "", 0.0
    while one["status"] not in ("done", "failed"):
        alone_s = 0.0 if one["pipeline"]["running"] else alone_s + POLL_S
        if alone_s and alone_s >= patience_s:
            if patience_s:
                _say_trouble(one["pipeline"])
            say(f"{one['topic']}: the request stays noted, and is done when a pipeline comes")
            break
        if one["text"] and one["text"] != said and not as_json:
            said = one["text"]
            say(f"{one['topic']}: {said}")
        try:
            one = get_json(page, f"/care/{one['request']}")
        except LakestreamError as error:
            raise LakestreamError(f"it is not known what became of the request {one['request']}: {error}") from None
        if one["status"] not in ("done", "failed"):
            time.sleep(POLL_S)
    return one

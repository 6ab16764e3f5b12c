"""`lakestream consume`: the records of topics on standard output, alone or as a member of a group."""

import asyncio
import contextlib
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from lakestream.cli.client.cluster_client import EARLIEST, LATEST, ClusterClient, Place, open_client
from lakestream.cli.client.texts import format_json, format_text
from lakestream.cli.groups import committed_offsets, parse_time
from lakestream.cli.options import bootstrap_option
from lakestream.cli.output import say
from lakestream.errors import LakestreamError

if TYPE_CHECKING:
    from lakestream.cli.client.reader import FetchedRecord

WAIT_MS = 500
COMMIT_EVERY_S = 1.0


@dataclass(slots=True, kw_only=True)
class _Wish:
    """What was asked for."""

    topics: tuple[str, ...]
    group: str | None
    partitions: tuple[int, ...]
    start: str
    """earliest, latest, an offset, -N from the end, or @TIME."""
    max_messages: int | None
    exit_at_end: bool
    stop: asyncio.Event = field(default_factory=asyncio.Event)


def _is_start(_: click.Context, __: click.Parameter, where: str | None) -> str | None:
    """A start that cannot be is the command's fault, and told before anybody is asked."""
    if where is not None and where.startswith("@"):
        parse_time(where[1:])
    elif where not in (None, "earliest", "latest") and re.fullmatch(r"[-+]?\d+", where) is None:
        raise click.BadParameter(f"expected N, -N, earliest, latest or @TIME, not {where!r}")
    return where


@click.command()
@click.argument("topics", nargs=-1, required=True)
@click.option("--from-beginning", is_flag=True, help="Start with the oldest record; else with what comes next.")
@click.option(
    "--offset", "-o", metavar="WHERE", callback=_is_start,
    help="Start at: N, -N (from the end), earliest, latest, @TIME.",
)  # fmt: skip
@click.option("--partition", "-p", "partitions", type=click.IntRange(min=0), multiple=True, help="Only these.")
@click.option("--group", "-g", metavar="NAME", help="Share the partitions with this group, and commit offsets.")
@click.option("--max-messages", "-n", type=click.IntRange(min=1), help="Stop after so many records.")
@click.option("--exit-at-end", "-e", is_flag=True, help="Stop at what is the end now.")
@click.option("--key-separator", "-k", metavar="TEXT", help="Print keys, with this behind them.")
@click.option("--headers", is_flag=True, help="Print headers in front, as name:value,... and a tab.")
@click.option("--json", "as_json", is_flag=True, help="Print each record as an object on a line.")
@bootstrap_option
def consume(
    bootstrap: str,
    topics: tuple[str, ...],
    from_beginning: bool,
    offset: str | None,
    partitions: tuple[int, ...],
    group: str | None,
    max_messages: int | None,
    exit_at_end: bool,
    key_separator: str | None,
    headers: bool,
    as_json: bool,
) -> None:
    """Print the records of topics until Ctrl-C.

    In a group, a partition goes on at its committed offset; the start that was asked for counts where there is none.
    """
    if offset is not None and from_beginning:
        raise click.UsageError("--offset and --from-beginning contradict each other")
    if group is not None and partitions:
        raise click.UsageError("in a --group partitions are shared out; --partition cannot choose")

    def show(record: "FetchedRecord") -> bytes:
        if as_json:
            return format_json(record.topic, record.partition, record.offset, record.timestamp, record.line)
        return format_text(record.line, key_separator, headers)

    async def run() -> int:
        wish = _Wish(
            topics=topics,
            group=group,
            partitions=partitions,
            start="earliest" if from_beginning else offset or "latest",
            max_messages=max_messages,
            exit_at_end=exit_at_end,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, wish.stop.set)
        async with open_client(bootstrap) as client:
            return await (_in_group(client, wish, show) if group else _alone(client, wish, show))

    count = asyncio.run(run())
    if sys.stderr.isatty():
        say(f"consumed {count:,} record{'' if count == 1 else 's'}")


async def _alone(client: ClusterClient, wish: _Wish, show: Callable[["FetchedRecord"], bytes]) -> int:
    places = [place for topic in wish.topics for place in await _chosen(client, topic, wish.partitions)]
    positions = await _start(client, places, wish.start)
    count = 0
    async for records in _follow(client, wish, positions, wish.stop):
        count += _print(records, show, wish, count)
        if wish.max_messages is not None and count >= wish.max_messages:
            break
    return count


async def _in_group(client: ClusterClient, wish: _Wish, show: Callable[["FetchedRecord"], bytes]) -> int:
    from lakestream.cli.client.membership import GroupMembership

    assert wish.group is not None
    for topic in wish.topics:
        await client.partitions(topic)
    member = GroupMembership(client, wish.group, wish.topics)
    loop = asyncio.get_running_loop()
    count = 0
    try:
        while not wish.stop.is_set():
            places = await _first(member.join(), wish.stop)
            if places is None:
                break
            committed = await committed_offsets(client, wish.group)
            fresh = await _start(client, [place for place in places if place not in committed], wish.start)
            positions = fresh | {place: committed[place] for place in places if place in committed}
            done, next_commit = dict(fresh), loop.time() + COMMIT_EVERY_S
            async for records in _follow(client, wish, positions, wish.stop, member.lost):
                shown = _print(records, show, wish, count)
                count += shown
                done |= {(r.topic, r.partition): r.offset + 1 for r in records[:shown]}
                full = wish.max_messages is not None and count >= wish.max_messages
                if done and (full or loop.time() >= next_commit):
                    await member.commit(done)
                    done, next_commit = {}, loop.time() + COMMIT_EVERY_S
                if full:
                    return count
            if done:
                await member.commit(done)
            if not member.lost.is_set():
                break
    finally:
        await member.leave()
    return count


async def _follow(
    client: ClusterClient, wish: _Wish, positions: dict[Place, int], *stops: asyncio.Event
) -> AsyncIterator[list["FetchedRecord"]]:
    """Records as they come, also none now and then, until one of the events, or the end if that was asked for."""
    from lakestream.cli.client.reader import RecordReader

    ends = await client.offsets(dict.fromkeys(positions, LATEST)) if wish.exit_at_end else {}
    reader = RecordReader(client, positions, EARLIEST)
    while not any(stop.is_set() for stop in stops):
        if wish.exit_at_end and all(reader.positions[place] >= end for place, end in ends.items()):
            return
        records = await _first(reader.poll(WAIT_MS) if positions else _nothing(), *stops)
        if records is None:
            return
        if wish.exit_at_end:
            records = [r for r in records if r.offset < ends[(r.topic, r.partition)]]
        yield records


async def _nothing() -> list["FetchedRecord"]:
    """A group may have more members than partitions; such a member waits for its time."""
    await asyncio.sleep(WAIT_MS / 1000)
    return []


async def _first(work: Any, *stops: asyncio.Event) -> Any:
    """What `work` gives, or None if one of the events is set before; the work is given up then."""
    tasks = [asyncio.ensure_future(work), *(asyncio.ensure_future(stop.wait()) for stop in stops)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


def _print(records: list["FetchedRecord"], show: Callable[["FetchedRecord"], bytes], wish: _Wish, before: int) -> int:
    """Written and flushed before offsets are committed: a record may come twice, but is never missed."""
    room = len(records) if wish.max_messages is None else wish.max_messages - before
    shown = records[:room]
    if shown:
        sys.stdout.buffer.write(b"".join(map(show, shown)))
        sys.stdout.buffer.flush()
    return len(shown)


async def _chosen(client: ClusterClient, topic: str, partitions: Iterable[int]) -> list[Place]:
    there = await client.partitions(topic)
    wanted = list(partitions) or there
    missing = sorted(set(wanted) - set(there))
    if missing:
        raise LakestreamError(f"topic {topic!r} has no partition {missing[0]}; it has {len(there)}, from 0")
    return [(topic, partition) for partition in wanted]


async def _start(client: ClusterClient, places: list[Place], where: str) -> dict[Place, int]:
    """The first offset to read of each partition."""
    if where in ("earliest", "latest"):
        return await client.offsets(dict.fromkeys(places, EARLIEST if where == "earliest" else LATEST))
    if where.startswith("@"):
        found = await client.offsets(dict.fromkeys(places, parse_time(where[1:])))
        latest = await client.offsets(dict.fromkeys(places, LATEST))
        return {place: offset if offset >= 0 else latest[place] for place, offset in found.items()}
    number = int(where)
    latest = await client.offsets(dict.fromkeys(places, LATEST))
    if number >= 0:
        _say_short({place: end for place, end in latest.items() if end < number}, number)
        return {place: min(number, latest[place]) for place in places}
    earliest = await client.offsets(dict.fromkeys(places, EARLIEST))
    return {place: max(earliest[place], latest[place] + number) for place in places}


def _say_short(ends: dict[Place, int], number: int) -> None:
    """Of partitions that end before the offset that was asked for; they are read from their end on."""
    if ends:
        (topic, partition), end = min(ends.items())
        more = f" ({len(ends):,} partitions do)" if len(ends) > 1 else ""
        say(f"{topic}-{partition} ends at {end}, before offset {number}{more}; there is nothing to read yet")

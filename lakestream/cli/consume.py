"""`lakestream consume`: prints the records of topics, alone or as a member of a group."""

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
class _Options:
    """The arguments of the command, and the event that ends it."""

    topics: tuple[str, ...]
    group: str | None
    partitions: tuple[int, ...]
    start: str
    """earliest, latest, an offset, -N from the end, or @TIME."""
    max_messages: int | None
    exit_at_end: bool
    stop: asyncio.Event = field(default_factory=asyncio.Event)


def _is_start(_: click.Context, __: click.Parameter, where: str | None) -> str | None:
    """Refuse an invalid start before the command connects to a broker."""
    if where is not None and where.startswith("@"):
        parse_time(where[1:])
    elif where not in (None, "earliest", "latest") and re.fullmatch(r"[-+]?\d+", where) is None:
        raise click.BadParameter(f"expected N, -N, earliest, latest or @TIME, not {where!r}")
    return where


@click.command()
@click.argument("topics", nargs=-1, required=True)
@click.option("--from-beginning", is_flag=True, help="Start with the oldest record. Default: with new records.")
@click.option(
    "--offset", "-o", metavar="WHERE", callback=_is_start,
    help="Start at offset N, N records before the end (-N), earliest, latest, or @TIME.",
)  # fmt: skip
@click.option(
    "--partition",
    "-p",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    help="Read only this partition; repeatable.",
)
@click.option("--group", "-g", metavar="NAME", help="Consume as a member of this group, and commit offsets.")
@click.option("--max-messages", "-n", type=click.IntRange(min=1), help="Stop after this number of records.")
@click.option("--exit-at-end", "-e", is_flag=True, help="Stop at the offset that is the end now.")
@click.option("--key-separator", "-k", metavar="TEXT", help="Print each key, followed by this text, before its value.")
@click.option("--headers", is_flag=True, help="Print headers first, as name:value,... and a tab.")
@click.option("--json", "as_json", is_flag=True, help="Print each record as a JSON object on one line.")
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

    In a group, a partition is read on from its committed offset; --offset and --from-beginning count for partitions
    without one.
    """
    if offset is not None and from_beginning:
        raise click.UsageError("give either --offset or --from-beginning, not both")
    if group is not None and partitions:
        raise click.UsageError("give either --group or --partition: a group assigns partitions to its members")

    def show(record: "FetchedRecord") -> bytes:
        if as_json:
            return format_json(record.topic, record.partition, record.offset, record.timestamp, record.line)
        return format_text(record.line, key_separator, headers)

    async def run() -> int:
        options = _Options(
            topics=topics,
            group=group,
            partitions=partitions,
            start="earliest" if from_beginning else offset or "latest",
            max_messages=max_messages,
            exit_at_end=exit_at_end,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, options.stop.set)
        async with open_client(bootstrap) as client:
            return await (_in_group(client, options, show) if group else _alone(client, options, show))

    count = asyncio.run(run())
    if sys.stderr.isatty():
        say(f"consumed {count:,} record{'' if count == 1 else 's'}")


async def _alone(client: ClusterClient, options: _Options, show: Callable[["FetchedRecord"], bytes]) -> int:
    places = [place for topic in options.topics for place in await _chosen(client, topic, options.partitions)]
    positions = await _start(client, places, options.start)
    count = 0
    async for records in _follow(client, options, positions, options.stop):
        count += _print(records, show, options, count)
        if options.max_messages is not None and count >= options.max_messages:
            break
    return count


async def _in_group(client: ClusterClient, options: _Options, show: Callable[["FetchedRecord"], bytes]) -> int:
    from lakestream.cli.client.membership import GroupMembership

    assert options.group is not None
    for topic in options.topics:
        await client.partitions(topic)
    member = GroupMembership(client, options.group, options.topics)
    loop = asyncio.get_running_loop()
    count = 0
    try:
        while not options.stop.is_set():
            places = await _first(member.join(), options.stop)
            if places is None:
                break
            committed = await committed_offsets(client, options.group)
            fresh = await _start(client, [place for place in places if place not in committed], options.start)
            positions = fresh | {place: committed[place] for place in places if place in committed}
            done, next_commit = dict(fresh), loop.time() + COMMIT_EVERY_S
            async for records in _follow(client, options, positions, options.stop, member.lost):
                shown = _print(records, show, options, count)
                count += shown
                done |= {(r.topic, r.partition): r.offset + 1 for r in records[:shown]}
                full = options.max_messages is not None and count >= options.max_messages
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
    client: ClusterClient, options: _Options, positions: dict[Place, int], *stops: asyncio.Event
) -> AsyncIterator[list["FetchedRecord"]]:
    """Yield records as they arrive, at times an empty list, until one of the events, or the end with --exit-at-end."""
    from lakestream.cli.client.reader import RecordReader

    ends = await client.offsets(dict.fromkeys(positions, LATEST)) if options.exit_at_end else {}
    reader = RecordReader(client, positions, EARLIEST)
    while not any(stop.is_set() for stop in stops):
        if options.exit_at_end and all(reader.positions[place] >= end for place, end in ends.items()):
            return
        records = await _first(reader.poll(WAIT_MS) if positions else _nothing(), *stops)
        if records is None:
            return
        if options.exit_at_end:
            records = [r for r in records if r.offset < ends[(r.topic, r.partition)]]
        yield records


async def _nothing() -> list["FetchedRecord"]:
    """The poll of a member without partitions: a group may have more members than partitions."""
    await asyncio.sleep(WAIT_MS / 1000)
    return []


async def _first(work: Any, *stops: asyncio.Event) -> Any:
    """The result of `work`, or None if one of the events is set first; then the work is cancelled."""
    tasks = [asyncio.ensure_future(work), *(asyncio.ensure_future(stop.wait()) for stop in stops)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


def _print(
    records: list["FetchedRecord"], show: Callable[["FetchedRecord"], bytes], options: _Options, before: int
) -> int:
    """Print and flush, before offsets are committed: a record may be printed twice, but none is missed."""
    room = len(records) if options.max_messages is None else options.max_messages - before
    shown = records[:room]
    if shown:
        sys.stdout.buffer.write(b"".join(map(show, shown)))
        sys.stdout.buffer.flush()
    return len(shown)


async def _chosen(client: ClusterClient, topic: str, partitions: Iterable[int]) -> list[Place]:
    existing = await client.partitions(topic)
    wanted = list(partitions) or existing
    missing = sorted(set(wanted) - set(existing))
    if missing:
        last = len(existing) - 1
        raise LakestreamError(f"topic {topic!r} has no partition {missing[0]}; its partitions are 0 to {last}")
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
        _say_beyond_end({place: end for place, end in latest.items() if end < number}, number)
        return {place: min(number, latest[place]) for place in places}
    earliest = await client.offsets(dict.fromkeys(places, EARLIEST))
    return {place: max(earliest[place], latest[place] + number) for place in places}


def _say_beyond_end(ends: dict[Place, int], number: int) -> None:
    """Name partitions that end before the start offset: the command reads them from their end on."""
    if ends:
        (topic, partition), end = min(ends.items())
        more = f" ({len(ends):,} partitions do)" if len(ends) > 1 else ""
        say(f"{topic}-{partition} ends at {end}, before offset {number}{more}; there is nothing to read yet")

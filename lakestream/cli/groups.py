"""`lakestream groups`: lists and describes consumer groups, resets and deletes their offsets, deletes groups."""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import click

from lakestream.cli.client.assignment import PROTOCOL_TYPE, decode_assignment
from lakestream.cli.client.cluster_client import EARLIEST, LATEST, ClusterClient, Place, open_client
from lakestream.cli.client.codes import check
from lakestream.cli.client.connection import Unreachable
from lakestream.cli.client.membership import commit_code, commit_request
from lakestream.cli.options import HelpfulGroup, bootstrap_option, group_bootstrap_option, json_option
from lakestream.cli.output import print_json, print_table, say
from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.messages.groups import (
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from lakestream.protocol.kafka.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)

ANSWER_S = 30.0


@click.group(cls=HelpfulGroup)
@group_bootstrap_option
def groups() -> None:
    """List and describe consumer groups, and reset their offsets."""


@groups.command("list")
@json_option
@bootstrap_option
def list_groups(bootstrap: str, as_json: bool) -> None:
    """List the consumer groups."""

    async def run() -> dict[str, tuple[str, str, str]]:
        found: dict[str, tuple[str, str, str]] = {}
        async with open_client(bootstrap) as client:
            for broker in (await client.metadata([])).brokers:
                try:
                    connection = await client.node(broker.host, broker.port)
                    answer = await connection.call(ListGroupsRequest(), ANSWER_S)
                except Unreachable as error:
                    say(f"warning: {error}")
                    continue
                check(answer.error_code, "listing groups")
                found |= {g.group_id: (g.group_id, g.group_state, g.protocol_type) for g in answer.groups}
        return found

    rows = sorted(asyncio.run(run()).values())
    if as_json:
        print_json([{"group": group, "state": state, "protocol_type": kind} for group, state, kind in rows])
    elif rows:
        print_table(("group", "state", "protocol type"), rows)
    else:
        say("there are no groups yet; `lakestream consume TOPIC --group NAME` creates one")


@groups.command()
@click.argument("names", nargs=-1, required=True)
@json_option
@bootstrap_option
def describe(bootstrap: str, names: tuple[str, ...], as_json: bool) -> None:
    """Show the members of groups, and the lag of each partition."""

    async def run() -> list[dict[str, Any]]:
        async with open_client(bootstrap) as client:
            return [await _describe(client, name) for name in names]

    described = asyncio.run(run())
    if as_json:
        print_json(described)
        return
    for group in described:
        columns = ("topic", "partition", "committed", "end", "lag", "member", "client", "host")
        title = f"group {group['group']}: {group['state']}, {len(group['members'])} members, lag {group['lag']}"
        print_table(columns, [[row[column] for column in columns] for row in group["partitions"]], title)


def parse_time(text: str) -> int:
    """A number of milliseconds since 1970, or an ISO 8601 time (local without a zone), in milliseconds."""
    if text.isdigit():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        told = f"{text!r} is not a time; write 2026-01-31T12:00:00 or milliseconds since 1970"
        raise click.BadParameter(told) from None


def _is_time(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    if text is not None:
        parse_time(text)
    return text


@groups.command("reset-offsets")
@click.argument("group")
@click.option(
    "--topic", "-t", "topics", multiple=True, metavar="TOPIC[:P,...]", help="Which partitions. Default: all committed."
)
@click.option("--to-earliest", is_flag=True, help="Set to the start of the log.")
@click.option("--to-latest", is_flag=True, help="Set to the end of the log.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="Set to this offset, within the log.")
@click.option(
    "--to-timestamp", metavar="WHEN", callback=_is_time, help="Set to the first record since: ISO 8601, or ms."
)
@click.option("--shift-by", type=int, metavar="N", help="Move by N offsets, forward or (negative) back.")
@click.option("--dry-run", is_flag=True, help="Show the new offsets without setting them.")
@click.option(
    "--execute", is_flag=True, hidden=True, expose_value=False, help="Has no effect; Kafka's tool requires it."
)
@json_option
@bootstrap_option
def reset_offsets(bootstrap: str, group: str, topics: tuple[str, ...], dry_run: bool, as_json: bool, **to: Any) -> None:
    """Set the committed offsets of an idle group.

    The group must have no live members.
    """
    chosen = [name for name, value in to.items() if value is not None and value is not False]
    if len(chosen) != 1:
        flags = ", ".join("--" + name.replace("_", "-") for name in to)
        raise click.UsageError(f"give exactly one of {flags}")

    async def run() -> list[tuple[str, int, int | None, int]]:
        async with open_client(bootstrap) as client:
            committed = await committed_offsets(client, group)
            places = await _places(client, topics) if topics else list(committed)
            if not places:
                raise LakestreamError(f"group {group!r} has no committed offsets; name the topics with --topic")
            targets = await _targets(client, places, committed, chosen[0], to[chosen[0]])
            if not dry_run:
                doing = f"resetting offsets of {group!r}"
                await client.ask_group(group, commit_request(group, targets), commit_code, doing)
            return [(*place, committed.get(place), targets[place]) for place in sorted(targets)]

    columns = ("topic", "partition", "before", "after")
    rows = asyncio.run(run())
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table(columns, rows, title=f"group {group}" + (" (dry run: nothing was changed)" if dry_run else ""))


@groups.command()
@click.argument("names", nargs=-1, required=True)
@bootstrap_option
def delete(bootstrap: str, names: tuple[str, ...]) -> None:
    """Delete idle groups with their offsets.

    The groups must have no live members.
    """

    async def run() -> None:
        async with open_client(bootstrap) as client:
            for name in names:
                request = DeleteGroupsRequest(groups_names=[name])
                await client.ask_group(name, request, lambda a: a.results[0].error_code, f"deleting group {name!r}")
                client.forget_coordinator()
                click.echo(f"deleted group {name}")

    asyncio.run(run())


@groups.command("delete-offsets")
@click.argument("group")
@click.option(
    "--topic", "-t", "topics", multiple=True, required=True, metavar="TOPIC[:P,...]", help="Which partitions."
)
@bootstrap_option
def delete_offsets(bootstrap: str, group: str, topics: tuple[str, ...]) -> None:
    """Delete a group's offsets of some topics.

    No live member of the group may read these topics.
    """

    async def run() -> int:
        async with open_client(bootstrap) as client:
            places = await _places(client, topics)
            by_topic: dict[str, list[OffsetDeleteRequestPartition]] = {}
            for topic, partition in places:
                by_topic.setdefault(topic, []).append(OffsetDeleteRequestPartition(partition_index=partition))
            wanted = [OffsetDeleteRequestTopic(name=name, partitions=parts) for name, parts in by_topic.items()]
            request = OffsetDeleteRequest(group_id=group, topics=wanted)
            doing = f"deleting offsets of {group!r}"
            await client.ask_group(group, request, lambda a: a.error_code or commit_code(a), doing)
            return len(places)

    click.echo(f"deleted the offsets of {asyncio.run(run())} partitions from group {group}")


async def committed_offsets(client: ClusterClient, group: str) -> dict[Place, int]:
    """All committed offsets of a group."""
    # Both forms of the request are filled in; the version in use encodes the one that it knows.
    request = OffsetFetchRequest(
        group_id=group, topics=None, groups=[OffsetFetchRequestGroup(group_id=group, topics=None)]
    )
    answer = await client.ask_group(
        group, request, lambda a: a.groups[0].error_code if a.groups else a.error_code, f"offsets of group {group!r}"
    )
    topics = answer.groups[0].topics if answer.groups else answer.topics
    return {
        (topic.name, part.partition_index): part.committed_offset
        for topic in topics
        for part in topic.partitions
        if not part.error_code and part.committed_offset >= 0
    }


async def _describe(client: ClusterClient, name: str) -> dict[str, Any]:
    request = DescribeGroupsRequest(groups=[name])
    answer = await client.ask_group(name, request, lambda a: a.groups[0].error_code, f"group {name!r}")
    group: DescribedGroup = answer.groups[0]
    committed = await committed_offsets(client, name)
    client.forget_coordinator()
    if group.group_state == "Dead" and not committed:
        raise LakestreamError(f"there is no group {name!r}; see `lakestream groups list`")
    readers = {
        place: member
        for member in group.members
        if group.protocol_type == PROTOCOL_TYPE
        for place in decode_assignment(member.member_assignment)
    }
    places = sorted(set(committed) | set(readers))
    ends = await client.offsets(dict.fromkeys(places, LATEST))
    rows = []
    for place in places:
        reader = readers.get(place)
        offset = committed.get(place)
        rows.append({
            "topic": place[0], "partition": place[1], "committed": offset, "end": ends[place],
            "lag": None if offset is None else max(0, ends[place] - offset),
            "member": reader.member_id if reader else None, "client": reader.client_id if reader else None,
            "host": reader.client_host if reader else None,
        })  # fmt: skip
    return {
        "group": name,
        "state": group.group_state,
        "protocol": group.protocol_data,
        "members": [{"id": m.member_id, "client": m.client_id, "host": m.client_host} for m in group.members],
        "lag": sum(row["lag"] or 0 for row in rows),
        "partitions": rows,
    }


async def _places(client: ClusterClient, topics: Iterable[str]) -> list[Place]:
    """The partitions meant by TOPIC or TOPIC:0,2."""
    places: list[Place] = []
    for text in topics:
        topic, _, chosen = text.partition(":")
        existing = await client.partitions(topic)
        try:
            wanted = [int(number) for number in chosen.split(",")] if chosen else existing
        except ValueError:
            raise click.UsageError(f"--topic takes TOPIC or TOPIC:0,2, not {text!r}") from None
        missing = sorted(set(wanted) - set(existing))
        if missing:
            last = len(existing) - 1
            raise LakestreamError(f"topic {topic!r} has no partition {missing[0]}; its partitions are 0 to {last}")
        places += [(topic, number) for number in wanted]
    return places


async def _targets(
    client: ClusterClient, places: list[Place], committed: Mapping[Place, int], how: str, value: Any
) -> dict[Place, int]:
    """The new offset of each partition, never below the log start or above the end."""
    earliest = await client.offsets(dict.fromkeys(places, EARLIEST))
    latest = await client.offsets(dict.fromkeys(places, LATEST))
    wanted = {"to_earliest": earliest, "to_latest": latest}.get(how)
    if how == "to_offset":
        wanted = dict.fromkeys(places, int(value))
    elif how == "shift_by":
        wanted = {place: committed.get(place, earliest[place]) + int(value) for place in places}
    elif how == "to_timestamp":
        found = await client.offsets(dict.fromkeys(places, parse_time(value)))
        wanted = {place: offset if offset >= 0 else latest[place] for place, offset in found.items()}
    assert wanted is not None, how
    return {place: min(max(wanted[place], earliest[place]), latest[place]) for place in places}

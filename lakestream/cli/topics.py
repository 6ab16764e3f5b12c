"""`lakestream topics`: lists, creates, describes, alters and deletes topics."""

import asyncio
import base64
from typing import Any

import click

from lakestream.cli.client.cluster_client import EARLIEST, LATEST, TOPIC, ClusterClient, open_client
from lakestream.cli.client.codes import KafkaError, check
from lakestream.cli.options import HelpfulGroup, bootstrap_option, group_bootstrap_option, json_option, pairs
from lakestream.cli.output import print_json, print_table, say
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    DescribeConfigsResourceResult,
    IncrementalAlterConfigsRequest,
)
from lakestream.protocol.kafka.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)

TIMEOUT_MS = 30_000
SET, DELETE = 0, 1
FROM_TOPIC = 1
"""The source of a config that was set on the topic itself."""


@click.group(cls=HelpfulGroup)
@group_bootstrap_option
def topics() -> None:
    """List, create, describe, alter and delete topics."""


@topics.command("list")
@json_option
@bootstrap_option
def list_topics(bootstrap: str, as_json: bool) -> None:
    """List the topics with their number of partitions."""

    async def run() -> list[tuple[str, int, str]]:
        async with open_client(bootstrap) as client:
            found = (await client.metadata(None)).topics
        return sorted((t.name or "", len(t.partitions), _id(t.topic_id)) for t in found)

    rows = asyncio.run(run())
    if as_json:
        print_json([{"name": name, "partitions": count, "id": topic_id} for name, count, topic_id in rows])
    elif rows:
        print_table(("topic", "partitions", "id"), rows)
    else:
        say("there are no topics yet; create one with `lakestream topics create NAME`")


@topics.command()
@click.argument("names", nargs=-1, required=True)
@click.option(
    "--partitions", "-p", type=click.IntRange(min=1), help="Their number. Default: the cluster's num_partitions."
)
@click.option(
    "--replication-factor", type=click.IntRange(1, 32767), help="Only shown to clients: the store replicates."
)
@click.option("--config", "-c", "configs", multiple=True, metavar="NAME=VALUE", help="A config; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Do not fail if a topic exists already.")
@bootstrap_option
def create(
    bootstrap: str,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
) -> None:
    """Create topics."""
    wanted = [CreatableTopicConfig(name=name, value=value) for name, value in pairs(configs, "--config").items()]
    asked = [
        CreatableTopic(
            name=name, num_partitions=partitions or -1, replication_factor=replication_factor or -1, configs=wanted
        )
        for name in names
    ]

    async def run() -> Any:
        async with open_client(bootstrap) as client:
            return await client.call(CreateTopicsRequest(topics=asked, timeout_ms=TIMEOUT_MS))

    for result in asyncio.run(run()).topics:
        if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
            click.echo(f"topic {result.name} exists already")
            continue
        check(result.error_code, f"creating topic {result.name!r}", result.error_message)
        count = f" with {result.num_partitions} partitions" if result.num_partitions > 1 else ""
        click.echo(f"created topic {result.name}{count}")


@topics.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--all-configs", is_flag=True, help="Show configs with their default value, too.")
@json_option
@bootstrap_option
def describe(bootstrap: str, names: tuple[str, ...], all_configs: bool, as_json: bool) -> None:
    """Show partitions, offsets and configs of topics."""

    async def run() -> list[dict[str, Any]]:
        async with open_client(bootstrap) as client:
            return [await _describe(client, name, all_configs) for name in names]

    described = asyncio.run(run())
    if as_json:
        print_json(described)
        return
    for topic in described:
        rows = [(p["partition"], p["earliest"], p["latest"], p["latest"] - p["earliest"]) for p in topic["partitions"]]
        title = f"topic {topic['name']} ({topic['id']})"
        print_table(("partition", "earliest", "latest", "offsets"), rows, title)
        if topic["configs"]:
            print_table(("config", "value"), topic["configs"].items())


@topics.command()
@click.argument("name")
@click.option("--partitions", "-p", type=click.IntRange(min=1), help="The new, larger number of partitions.")
@click.option("--config", "-c", "configs", multiple=True, metavar="NAME=VALUE", help="Set a config; repeatable.")
@click.option(
    "--delete-config", "-d", "deleted", multiple=True, metavar="NAME", help="Set a config back to its default."
)
@bootstrap_option
def alter(
    bootstrap: str, name: str, partitions: int | None, configs: tuple[str, ...], deleted: tuple[str, ...]
) -> None:
    """Change the configs of a topic, or add partitions."""
    changes = [AlterableConfig(name=k, config_operation=SET, value=v) for k, v in pairs(configs, "--config").items()]
    changes += [AlterableConfig(name=k, config_operation=DELETE) for k in deleted]
    if not changes and partitions is None:
        raise click.UsageError("there is nothing to change: give --config, --delete-config or --partitions")

    async def run() -> None:
        async with open_client(bootstrap) as client:
            if changes:
                resource = AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=changes)
                (changed,) = (await client.call(IncrementalAlterConfigsRequest(resources=[resource]))).responses
                check(changed.error_code, f"configs of {name!r}", changed.error_message)
            if partitions is not None:
                grown = CreatePartitionsTopic(name=name, count=partitions, assignments=None)
                request = CreatePartitionsRequest(topics=[grown], timeout_ms=TIMEOUT_MS)
                (result,) = (await client.call(request)).results
                check(result.error_code, f"partitions of {name!r}", result.error_message)

    asyncio.run(run())
    click.echo(f"altered topic {name}")


@topics.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--if-exists", is_flag=True, help="Do not fail if a topic does not exist.")
@bootstrap_option
def delete(bootstrap: str, names: tuple[str, ...], if_exists: bool) -> None:
    """Delete topics, with records and committed offsets.

    A topic's table is dropped, too, unless its config lakestream.table.on.delete is `keep`.
    """

    async def run() -> Any:
        states = [DeleteTopicState(name=name) for name in names]
        async with open_client(bootstrap) as client:
            request = DeleteTopicsRequest(topics=states, topic_names=list(names), timeout_ms=TIMEOUT_MS)
            return await client.call(request)

    for result in asyncio.run(run()).responses:
        if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and if_exists:
            click.echo(f"there is no topic {result.name}")
            continue
        check(result.error_code, f"deleting topic {result.name!r}", result.error_message)
        click.echo(f"deleted topic {result.name}")


async def _describe(client: ClusterClient, name: str, all_configs: bool) -> dict[str, Any]:
    (topic,) = (await client.metadata([name])).topics
    if topic.error_code:
        raise KafkaError(topic.error_code, f"topic {name!r}")
    places = [(name, partition.partition_index) for partition in topic.partitions]
    earliest = await client.offsets(dict.fromkeys(places, EARLIEST))
    latest = await client.offsets(dict.fromkeys(places, LATEST))
    configs = [c for c in await client.configs(TOPIC, name) if all_configs or c.config_source == FROM_TOPIC]
    return {
        "name": name,
        "id": _id(topic.topic_id),
        "partitions": [
            {"partition": place[1], "earliest": earliest[place], "latest": latest[place]} for place in sorted(places)
        ],
        "configs": {config.name: _value(config) for config in sorted(configs, key=lambda c: c.name)},
    }


def _value(config: DescribeConfigsResourceResult) -> str | None:
    return None if config.is_sensitive else config.value


def _id(topic_id: bytes) -> str:
    """A topic id as Kafka's tools write it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")

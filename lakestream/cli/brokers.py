"""`lakestream brokers`: the live brokers with their addresses and epochs."""

import asyncio

import click

from lakestream.cli.client.cluster_client import BROKER, ClusterClient, open_client
from lakestream.cli.client.codes import KafkaError
from lakestream.cli.client.connection import Unreachable
from lakestream.cli.options import bootstrap_option, json_option
from lakestream.cli.output import Cell, print_json, print_table
from lakestream.protocol.kafka.messages.metadata import MetadataResponseBroker

COLUMNS = ("id", "host", "port", "http", "epoch", "pid")


@click.command()
@json_option
@bootstrap_option
def brokers(bootstrap: str, as_json: bool) -> None:
    """List the live brokers. A broker that does not answer has no HTTP port, epoch and pid in the list."""
    rows = asyncio.run(_brokers(bootstrap))
    if as_json:
        print_json([dict(zip(COLUMNS, row, strict=True)) for row in rows])
    else:
        print_table(COLUMNS, rows)


async def _brokers(bootstrap: str) -> list[tuple[Cell, ...]]:
    async with open_client(bootstrap) as client:
        found = sorted((await client.metadata([])).brokers, key=lambda broker: broker.node_id)
        return list(await asyncio.gather(*(_row(client, broker) for broker in found)))


async def _row(client: ClusterClient, broker: MetadataResponseBroker) -> tuple[Cell, ...]:
    """Ask the broker itself, since only it knows its process."""
    known: dict[str, str | None] = {}
    try:
        connection = await client.node(broker.host, broker.port)
        known = {config.name: config.value for config in await client.configs(BROKER, str(broker.node_id), connection)}
    except (Unreachable, KafkaError):
        pass
    epoch, pid = known.get("lakestream.epoch"), known.get("lakestream.pid")
    return (
        broker.node_id,
        broker.host,
        broker.port,
        known.get("lakestream.http"),
        int(epoch) if epoch else None,
        int(pid) if pid else None,
    )

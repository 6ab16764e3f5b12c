"""L20 on a live broker: a topic that nobody lands and nobody merges fast enough fills its share of the state, no more.

A tick with one batch for each of thousands of partitions is as many entries. The mover makes fewer of them meanwhile,
more slowly than the producer adds to them: it is first held back, then refused with an error that may be tried again.
"""

import re
import urllib.request
from pathlib import Path

import pytest

from lakestream.model.batches.records import Record, encode_batch
from lakestream.model.bounds import ENTRY_BYTES
from lakestream.protocol.kafka.configs import BROKER
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.support.acked_workload import create_topic
from tests.support.live_broker import MB, Live, ask, decoded, living, produce

PARTITIONS = 10_000
SHARE = 500_000
"""All that the state takes: nearly all partitions that have entries are this topic's (model/streams.py)."""
OTHERS = 5_000
"""What the neighbours have, which produce meanwhile: the figure is that of all topics."""
REQUESTS_MAX = 120
"""More than the state takes, if nobody held them back."""


def entries(live: Live) -> int:
    with urllib.request.urlopen(f"http://{live.cluster.http[0]}/metrics") as answer:
        found = re.search(r"^lakestream_state_entries (\d+)", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return int(found.group(1))


@pytest.mark.long
async def test_l20_a_topic_that_fills_its_share_is_held_back_and_then_refused_and_nobody_else(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        create_topic(live.cluster.bootstrap, "greedy", PARTITIONS)
        frame = produce([encode_batch([Record(value=b"x")])] * PARTITIONS, "greedy")
        client = await live.connect()
        limit = AlterableConfig(name="lakestream.max.entry.bytes", value=str(SHARE * ENTRY_BYTES))
        everybody = AlterConfigsResource(resource_type=BROKER, resource_name="", configs=[limit])
        altered = await ask(client, 44, 1, IncrementalAlterConfigsRequest(resources=[everybody]))
        assert altered.responses[0].error_code == 0
        throttled, refused, most = 0, 0, 0
        async with live.unharmed(bound=1024 * MB):
            for _ in range(REQUESTS_MAX):
                await client.send(frame)
                answer = decoded(0, 9, (await client.answer())[1])
                throttled = max(throttled, answer.throttle_time_ms)
                codes = [one.error_code for one in answer.responses[0].partition_responses]
                assert set(codes) <= {0, ErrorCode.NOT_ENOUGH_REPLICAS}
                refused += sum(map(bool, codes))
                most = max(most, entries(live))
                if refused > PARTITIONS:
                    break
        print(f"{most} entries at most, throttled for {throttled} ms, {refused} batches refused")
        assert most <= SHARE + OTHERS
        assert throttled > 0
        assert refused > 0

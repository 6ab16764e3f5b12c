"""Failures become Kafka's codes in one place, and no code claims more than is known (L17)."""

import asyncio

import pytest

from lakestream.errors import Corrupt, Fenced, LakestreamError, Missing, Rejected, Retry, Unknown
from lakestream.model.commands import AllocateProducerId, DeleteTopic
from lakestream.model.reasons import Reason
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.refusals import Refusal, propose, refusal
from tests.support.kafka_calls import one_broker


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unknown("lost"), ErrorCode.REQUEST_TIMED_OUT),
        (Retry("later"), ErrorCode.NOT_CONTROLLER),
        (Fenced("gone"), ErrorCode.NOT_CONTROLLER),
        (Missing("gone"), ErrorCode.NOT_CONTROLLER),
        (Corrupt("lost bytes"), ErrorCode.KAFKA_STORAGE_ERROR),
        (Rejected(Reason.OFFSET_OUT_OF_RANGE), ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_each_kind_of_failure_has_its_code(error: LakestreamError, code: ErrorCode) -> None:
    refused = refusal(error, ErrorCode.NOT_CONTROLLER)
    assert refused.code == code and refused.message


async def test_a_proposal_whose_outcome_nobody_knows_timed_out_L17() -> None:
    async with one_broker() as broker:
        await broker.log.close()
        waiting = asyncio.create_task(propose(broker.replica, AllocateProducerId()))
        await asyncio.sleep(0.03)
        await broker.stop()
        outcome = await waiting
        assert isinstance(outcome, Refusal) and outcome.code == ErrorCode.REQUEST_TIMED_OUT


async def test_a_no_of_the_state_machine_keeps_its_words() -> None:
    async with one_broker() as broker:
        outcome = await propose(broker.replica, DeleteTopic(b"7" * 16))
        assert outcome == Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic has this id")
        assert await propose(broker.replica, AllocateProducerId()) == 0

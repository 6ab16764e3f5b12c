"""DescribeClientQuotas through the bytes of its versions: nobody has a quota, and odd filters are refused."""

import pytest

from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.quotas import (
    ClientQuotaFilter,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from lakestream.protocol.kafka.quotas import CLIENT_ID, DEFAULT, EXACT, IP, SPECIFIED, USER
from tests.support.kafka_calls import one_broker

QUOTAS = 48
NOTHING = DescribeClientQuotasResponse(error_message="", entries=[])

Filter = tuple[str, int, str | None]


async def described(*filters: Filter, strict: bool = False, version: int = 1) -> DescribeClientQuotasResponse:
    async with one_broker() as broker:
        components = [ClientQuotaFilter(entity_type=kind, match_type=how, match=name) for kind, how, name in filters]
        asked = DescribeClientQuotasRequest(components=components, strict=strict)
        answer: DescribeClientQuotasResponse = await broker.call(QUOTAS, asked, version)
        return answer


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "filters",
    [
        [],
        [(CLIENT_ID, SPECIFIED, None)],
        [(USER, EXACT, "ada"), (CLIENT_ID, DEFAULT, None)],
        [(USER, EXACT, "")],
        [(IP, EXACT, "no address")],
    ],
)
async def test_nobody_has_a_quota(filters: list[Filter], strict: bool, version: int) -> None:
    assert await described(*filters, strict=strict, version=version) == NOTHING


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("filters", "code"),
    [
        ([("", SPECIFIED, None)], ErrorCode.INVALID_REQUEST),
        ([(USER, SPECIFIED, None), (USER, EXACT, "ada")], ErrorCode.INVALID_REQUEST),
        ([("group", SPECIFIED, None)] * 2, ErrorCode.UNSUPPORTED_VERSION),
        ([("User", SPECIFIED, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("u" * 32767, SPECIFIED, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([(USER, EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([(USER, DEFAULT, "ada")], ErrorCode.INVALID_REQUEST),
        ([(USER, SPECIFIED, "")], ErrorCode.INVALID_REQUEST),
        ([(USER, 3, None)], ErrorCode.INVALID_REQUEST),
        ([(USER, -1, "ada")], ErrorCode.INVALID_REQUEST),
        ([(IP, SPECIFIED, None), (CLIENT_ID, SPECIFIED, None)], ErrorCode.INVALID_REQUEST),
        ([(USER, SPECIFIED, None), (IP, SPECIFIED, None)], ErrorCode.INVALID_REQUEST),
        ([(IP, SPECIFIED, None), (USER, EXACT, None), ("group", SPECIFIED, None)], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_filter_that_kafka_refuses_is_refused(filters: list[Filter], code: ErrorCode, version: int) -> None:
    answer = await described(*filters, version=version)
    assert (answer.error_code, answer.entries) == (code, None)
    assert answer.error_message

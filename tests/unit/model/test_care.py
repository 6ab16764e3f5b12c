"""Requests for care in the state machine: taken, told, kept for a while, bounded."""

import pytest

from lakestream.model.catalog import care
from lakestream.model.catalog.care import (
    ARGUMENTS_BYTES_MAX,
    DONE,
    FAILED,
    KEPT_MS,
    REQUESTS_MAX,
    RUNNING,
    TEXT_MAX,
    NoteCare,
    NotePipeline,
    RequestCare,
    TellCare,
)
from lakestream.model.catalog.landed import Landing
from lakestream.model.commands import Body, Heartbeat, pack
from lakestream.model.reasons import No, Reason
from lakestream.model.state import dump, load
from tests.support.planned_state import World


def number(n: int) -> bytes:
    return n.to_bytes(16, "big")


def say(world: World, body: Body) -> object:
    return world.command(body.KIND, pack(body))


@pytest.fixture
def world() -> World:
    made = World()
    made.topic("orders")
    return made


def topic_id(world: World) -> bytes:
    return world.state.topics.by_name["orders"].id


def test_a_request_is_taken_told_and_its_answer_kept_for_a_while(world: World) -> None:
    say(world, Heartbeat(1_000_000, 0, 0, 0))
    asked = RequestCare(number(1), topic_id(world), "delete", {"where": "true"})
    assert say(world, asked) is None
    assert world.state.care.waiting() == [number(1)]
    assert say(world, TellCare(number(1), RUNNING, "half", {"files": 3})) is None
    assert world.state.care.waiting() == [number(1)], "who began it may have died"
    assert say(world, TellCare(number(1), DONE, "x" * (TEXT_MAX + 5), {"files": 7})) is None
    one = world.state.care.requests[number(1)]
    assert (one.status, len(one.text), one.figures, one.asked_ms) == (DONE, TEXT_MAX, {"files": 7}, 1_000_000)
    assert world.state.care.waiting() == []
    say(world, Heartbeat(1_000_000 + KEPT_MS + 1, 0, 0, 0))
    assert say(world, RequestCare(number(2), topic_id(world), "optimize", {})) is None
    assert list(world.state.care.requests) == [number(2)]


def test_a_request_that_is_asked_again_is_the_same_one(world: World) -> None:
    asked = RequestCare(number(1), topic_id(world), "optimize", {})
    say(world, asked)
    say(world, TellCare(number(1), FAILED, "no", {}))
    assert say(world, asked) is None
    assert world.state.care.requests[number(1)].status == FAILED


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (RequestCare(b"short", b"", "optimize", {}), Reason.INVALID_REQUEST),
        (RequestCare(number(1), b"", "dance", {}), Reason.INVALID_REQUEST),
        (RequestCare(number(1), b"", "delete", {"where": "x" * ARGUMENTS_BYTES_MAX}), Reason.INVALID_REQUEST),
        (RequestCare(number(1), b"elsewhere", "optimize", {}), Reason.UNKNOWN_TOPIC),
        (TellCare(number(9), DONE, "", {}), Reason.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_is_refused(world: World, body: Body, reason: Reason) -> None:
    outcome = say(world, body)
    assert isinstance(outcome, No) and outcome.reason == reason
    assert not world.state.care.requests


def test_an_answer_is_final_and_has_one_of_three_forms(world: World) -> None:
    say(world, RequestCare(number(1), topic_id(world), "optimize", {}))
    odd = say(world, TellCare(number(1), "lost", "", {}))
    assert isinstance(odd, No) and odd.reason == Reason.MALFORMED
    say(world, TellCare(number(1), DONE, "", {}))
    late = say(world, TellCare(number(1), FAILED, "", {}))
    assert isinstance(late, No) and world.state.care.requests[number(1)].status == DONE


def test_requests_are_bounded_and_answers_make_room_first(world: World) -> None:
    for n in range(REQUESTS_MAX):
        assert say(world, RequestCare(number(n), topic_id(world), "optimize", {})) is None
    full = say(world, RequestCare(number(999), topic_id(world), "optimize", {}))
    assert isinstance(full, No) and full.reason == Reason.CARE_FULL
    say(world, TellCare(number(5), DONE, "", {}))
    assert say(world, RequestCare(number(999), topic_id(world), "optimize", {})) is None
    assert len(world.state.care.requests) == REQUESTS_MAX and number(5) not in world.state.care.requests


def test_a_checkpoint_holds_requests_and_the_pipelines_trouble(world: World) -> None:
    say(world, RequestCare(number(1), topic_id(world), "delete", {"where": "a"}))
    say(world, TellCare(number(1), RUNNING, "half", {"files": 3}))
    say(world, NotePipeline("no Java"))
    again = load(dump(world.state))
    assert again.care.requests == world.state.care.requests and again.care.trouble == "no Java"
    assert dump(again) == dump(world.state)
    assert {body.KIND for body, _ in care.RULES} == {50, 51, 52, 53}


def test_why_care_of_a_table_fails_is_kept_with_what_is_known_of_it(world: World) -> None:
    early = say(world, NoteCare(topic_id(world), "a catalog that refuses"))
    assert isinstance(early, No) and early.reason == Reason.UNKNOWN_TOPIC, "it has no table"
    landing = world.state.catalog.landings[topic_id(world)] = Landing("u")
    assert say(world, NoteCare(topic_id(world), "x" * (TEXT_MAX + 5))) is None
    assert len(landing.uncared) == TEXT_MAX
    assert load(dump(world.state)).catalog.landings[topic_id(world)].uncared == landing.uncared
    assert Landing.load(landing.dump()[:-1]).uncared == "", "an older checkpoint says nothing of it"
    assert say(world, NoteCare(topic_id(world), "")) is None and not landing.uncared

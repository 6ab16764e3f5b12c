"""All answers together stay within bounds, and nobody starves."""

from lakestream.protocol.serving.answer_budget import AnswerBudget


def test_one_answer_gets_what_it_wants_up_to_its_own_limit_and_a_quarter_of_what_is_left() -> None:
    room = AnswerBudget(50, 400, lambda: 0)
    assert room.take(10) == 10
    assert room.take(1000) == 50
    assert room.take(1000) == 50
    room = AnswerBudget(1000, 400, lambda: 0)
    assert [room.take(1000), room.take(1000)] == [100, 75]


def test_answers_that_are_not_sent_count_until_they_are() -> None:
    unsent = [0]
    room = AnswerBudget(1000, 400, lambda: unsent[0])
    room.give_back(room.take(1000))
    unsent[0] = 200
    assert room.scarce is False
    assert room.take(1000) == 50
    assert room.scarce is True
    unsent[0] = 0
    room.give_back(50)
    assert room.take(1000) == 100


def test_with_nothing_left_each_gets_one_batch_and_at_twice_the_limit_none() -> None:
    unsent = [400]
    room = AnswerBudget(1000, 400, lambda: unsent[0])
    assert room.take(1000) == 0
    unsent[0] = 800
    assert room.take(1000) == -1
    room.give_back(-1)
    unsent[0] = 0
    assert room.take(1000) == 100

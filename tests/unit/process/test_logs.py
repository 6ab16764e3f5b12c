"""Structured logs: one event a line in each format, with its fields."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from lakestream.process import logs


@pytest.fixture(autouse=True)
def own_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def written(form: str, **extra: object) -> str:
    stream = io.StringIO()
    logs.configure("info", form, {"broker": 2}, stream)
    log = logging.getLogger("lakestream.test")
    log.debug("not shown")
    log.warning("a tick of %d bytes", 7, extra=extra)
    return stream.getvalue()


def test_json_lines_carry_event_context_and_fields() -> None:
    line = json.loads(written("json", tick=9))
    assert (line["event"], line["level"], line["broker"], line["tick"]) == ("a tick of 7 bytes", "warning", 2, 9)


def test_logfmt_quotes_what_needs_it_so_that_a_line_stays_a_line() -> None:
    text = written("logfmt", why='two words\n"quoted"')
    assert text.count("\n") == 1
    assert r'event="a tick of 7 bytes" broker=2 why="two words\n\"quoted\""' in text


def test_auto_is_logfmt_where_no_terminal_is() -> None:
    assert written("auto").startswith("time=")


def test_an_exception_is_one_field_of_the_line() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream=stream)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger().exception("failed")
    assert "ValueError: broken" in json.loads(stream.getvalue())["trace"]


def test_people_see_level_event_and_fields() -> None:
    assert "warning" in (text := written("human", tick=9)) and "tick=9" in text


@pytest.mark.parametrize("form", ["json", "logfmt", "human"])
def test_control_characters_of_a_client_stay_inside_their_value(form: str) -> None:
    stream = io.StringIO()
    logs.configure("info", form, {}, stream)
    evil = "x\x1b[2Jy\nlevel=error\x9b\u2028\u202e\x7f"
    logging.getLogger("lakestream.test").warning("topic %s", evil, extra={"topic": evil})
    said = stream.getvalue()
    assert said.count("\n") == 1 and len(said.splitlines()) == 1
    without_color = said.replace("\x1b[33m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert without_color.rstrip("\n").isprintable() and "\\u001b[2Jy" in said

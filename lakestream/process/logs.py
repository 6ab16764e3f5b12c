"""Structured logs: one event a line, as JSON, as key=value, or for people on a terminal.

Fields go in `extra`: `log.warning("broker died", extra={"broker": 1, "code": -9})`. Text that comes from a
client (a topic's name, a path) stays inside its value: control characters are quoted. Known secrets are masked.
"""

import json
import logging
import sys
from collections.abc import Iterable, Mapping
from typing import TextIO

from lakestream.redaction import Redactor

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLORS = {"DEBUG": "\x1b[2m", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31;1m"}
_RESET = "\x1b[0m"


def configure(
    level: str = "info", form: str = "auto", context: Mapping[str, object] | None = None, stream: TextIO | None = None,
    secrets: Iterable[str] = (),
) -> None:  # fmt: skip
    """Send all logs of this process to standard error (or `stream`); `context` is part of every line.

    `secrets` are values that no line may show.
    """
    target = stream or sys.stderr
    if form == "auto":
        form = "human" if target.isatty() else "logfmt"
    handler = logging.StreamHandler(target)
    handler.setFormatter(_FORMATTERS[form](dict(context or {}), Redactor(secrets)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class _Structured(logging.Formatter):
    def __init__(self, context: Mapping[str, object], redact: Redactor) -> None:
        super().__init__()
        self._context = context
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        return self._redact(self.line(record))

    def line(self, record: logging.LogRecord) -> str:
        raise NotImplementedError

    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        extra = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        return {**self._context, **extra}

    def stamp(self, record: logging.LogRecord) -> str:
        return f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}"

    def trace(self, record: logging.LogRecord) -> str:
        return self.formatException(record.exc_info) if record.exc_info else ""


class _Json(_Structured):
    def line(self, record: logging.LogRecord) -> str:
        line = {"time": self.stamp(record), "level": record.levelname.lower(), "logger": record.name}
        line["event"] = record.getMessage()
        if trace := self.trace(record):
            line["trace"] = trace
        return json.dumps({**line, **self.fields(record)}, default=str)


class _Logfmt(_Structured):
    def line(self, record: logging.LogRecord) -> str:
        line = {"time": self.stamp(record), "level": record.levelname.lower(), "logger": record.name}
        line["event"] = record.getMessage()
        if trace := self.trace(record):
            line["trace"] = trace
        return " ".join(f"{key}={_quoted(value)}" for key, value in {**line, **self.fields(record)}.items())


class _Human(_Structured):
    def line(self, record: logging.LogRecord) -> str:
        color = _COLORS.get(record.levelname, "")
        details = " ".join(f"{key}={_quoted(value)}" for key, value in self.fields(record).items())
        line = f"{self.formatTime(record, '%H:%M:%S')} {color}{record.levelname.lower():7}{_RESET if color else ''} "
        line += _shown(record.getMessage()) + (f"  \x1b[2m{details}{_RESET}" if details else "")
        return line + "".join(f"\n{_shown(one)}" for one in self.trace(record).splitlines())


_FORMATTERS: dict[str, type[_Structured]] = {"json": _Json, "logfmt": _Logfmt, "human": _Human}


def _quoted(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and not any(c in text for c in ' ="\\') else json.dumps(text)


def _shown(text: str) -> str:
    """The text for people; characters that would break the line or command the terminal are quoted."""
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)

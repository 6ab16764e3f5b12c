"""A pytest plugin for PyIceberg's own tests: they meet our catalog, and what does not apply is left out.

It runs in the environment of these tests. What it is told and what it reports are files of JSON, named by variables.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog

THEIRS = "http://localhost:8181"
TOLD = json.loads(os.environ["OUR_CATALOG"])

_init = RestCatalog.__init__


def _init_ours(self: RestCatalog, name: str, **properties: Any) -> None:
    if properties.get("uri") == THEIRS:
        properties["uri"] = TOLD["uri"]
    _init(self, name, **properties)


RestCatalog.__init__ = _init_ours  # type: ignore[method-assign]
report: dict[str, Any] = {"outcomes": Counter(), "failed": [], "left out": []}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if _reason(item) is not None]
    report["left out"] = sorted({reason for item in left_out if (reason := _reason(item)) is not None})
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if _reason(item) is None]


def _reason(item: pytest.Item) -> str | None:
    """The fixture or the name because of which a test does not apply."""
    params = getattr(getattr(item, "callspec", None), "params", {}).values()
    fixtures = {*getattr(item, "fixturenames", ()), *(getattr(value, "name", "") for value in params)}
    name = item.name.partition("[")[0]
    return next((word for word in [*sorted(fixtures), name] if word in TOLD["leave out"]), None)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _note(report)


def _note(result: pytest.TestReport) -> None:
    report["outcomes"][result.outcome] += 1
    if result.outcome == "failed":
        report["failed"].append(f"{result.nodeid}: {result.longreprtext[-1500:]}")


def pytest_sessionfinish() -> None:
    Path(TOLD["report"]).write_text(json.dumps(report))

"""What every test shares: how Hypothesis runs, and what happens when a machine lacks a program."""

import os
import shutil

import pytest
from hypothesis import settings

# A deadline for each example measures the machine's load, not the code. In CI the same examples run every time.
settings.register_profile("lakestream", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("lakestream")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """`@pytest.mark.needs("javac", "mvn")` skips where a program is missing, and fails in CI, which has them all."""
    tools = [tool for mark in item.iter_markers("needs") for tool in mark.args]
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if not missing:
        return
    reason = f"needs {', '.join(missing)}, which this machine lacks"
    if "CI" in os.environ:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)

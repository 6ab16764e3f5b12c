"""Starts an engine on a catalog, for tables in a folder or in a bucket."""

import os
from pathlib import Path

import pytest

from tests.engines.clients.face import Engine
from tests.engines.clients.trino import Trino
from tests.engines.environments import build
from tests.support.s3_server import S3Server


def opened(kind: type[Engine], uri: str, folder: Path, store: S3Server | None = None) -> Engine:
    """Skips where the engine's environment was not built, and fails in CI, which builds them all."""
    name = kind.name.lower()
    if name in build.ENGINES and build.folder(name) is None:
        missing = pytest.fail if "CI" in os.environ else pytest.skip
        missing(f"needs the environment of {kind.name}: run `make environments`")
    return Trino(uri, folder, store) if kind is Trino else kind(uri, store)  # type: ignore[call-arg]

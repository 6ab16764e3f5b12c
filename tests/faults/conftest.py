"""One live broker for all tests of a module that try to hurt it."""

from collections.abc import Iterator

import pytest

from tests.support.live_broker import Live, living


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with living(tmp_path_factory.mktemp("live")) as running:
        yield running

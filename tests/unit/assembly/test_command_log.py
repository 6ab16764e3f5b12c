"""Which process opens the command log, which others reach it, and by which address."""

from pathlib import Path

import pytest

from lakestream.assembly.command_log import (
    STORES,
    LogSharing,
    check_command_log,
    log_file,
    log_sharing,
    open_command_log,
    open_repairable_log,
)
from lakestream.errors import Retry
from lakestream.settings import Settings, SettingsError

FILE = "sqlite:///var/log.sqlite"
SOCKET = "/run/log.sock"
SHARED = f"owner:{SOCKET}"


@pytest.mark.parametrize(
    ("settings", "sharing"),
    [
        (Settings(metadata=FILE, tables=False), LogSharing(broker_address=FILE, pipeline_address=FILE)),
        (
            Settings(metadata=FILE),
            LogSharing(broker_address=FILE, pipeline_address=SHARED, broker_socket=SOCKET),
        ),
        (
            Settings(metadata=FILE, brokers=2),
            LogSharing(broker_address=SHARED, pipeline_address=SHARED, owned_file=Path("/var/log.sqlite")),
        ),
        (
            Settings(metadata="memory:", tables=False),
            LogSharing(broker_address="memory:", pipeline_address="memory:"),
        ),
        (
            Settings(metadata="owner:/run/other.sock", brokers=2),
            LogSharing(broker_address="owner:/run/other.sock", pipeline_address="owner:/run/other.sock"),
        ),
    ],
)
def test_settings_say_who_opens_the_log_and_how_the_others_reach_it(settings: Settings, sharing: LogSharing) -> None:
    assert log_sharing(settings, SOCKET) == sharing


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings(metadata="redis://x"), "no URL we know"),
        (Settings(metadata="memory:", brokers=2), "one broker only"),
        (Settings(metadata="memory:"), "tables need a store"),
    ],
)
def test_an_address_that_no_store_can_serve_is_refused(settings: Settings, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        check_command_log(settings)


async def test_every_store_of_this_machine_opens_at_its_address(tmp_path: Path) -> None:
    for metadata in ("memory:", f"sqlite://{tmp_path}/made/log.sqlite"):
        log = await open_command_log(Settings(metadata=metadata))
        assert (await log.append([b"one"], 0)).first == 1
        await log.close()
    assert log_file(Settings(metadata=f"sqlite://{tmp_path}/made/log.sqlite")) == tmp_path / "made" / "log.sqlite"
    assert set(STORES) == {"memory", "sqlite", "owner"}


async def test_a_log_that_a_process_has_open_is_not_repaired(tmp_path: Path) -> None:
    settings = Settings(metadata=f"sqlite://{tmp_path}/log.sqlite")
    log = await open_command_log(settings)
    with pytest.raises(Retry):
        await open_repairable_log(settings)
    await log.close()
    await (await open_repairable_log(settings)).close()

"""The contract checks for authors of plug-ins, in one place: run them on your own store."""

from lakestream.testing.command_log_contract import check_command_log
from lakestream.testing.wal_contract import check_wal

__all__ = ["check_command_log", "check_wal"]

"""The contract checks for plug-in authors, in one place: run them against a store of your own."""

from lakestream.testing.command_log_contract import check_command_log
from lakestream.testing.wal_contract import check_wal

__all__ = ["check_command_log", "check_wal"]

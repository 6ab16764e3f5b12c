"""Same command, same outcome in every version: what a newer version knows more is judged by the proposer (L3)."""

import pytest

from lakestream.model.catalog.care import FIRST_KINDS, RequestCare
from lakestream.model.commands import AlterConfigs, Body, CreateTopic, Register, encode, pack
from lakestream.model.configs import CLUSTER_CONFIGS, CONFIGS_MAX, TOPIC_CONFIGS, VALUE_CHARACTERS_MAX
from lakestream.model.levels import BOUNDED, FIRST, NEWEST
from lakestream.model.reasons import No, Reason
from lakestream.model.state import Outcome, State, apply

FIRST_TOPIC_CONFIGS = [
    "cleanup.policy", "compression.gzip.level", "compression.lz4.level", "compression.type", "compression.zstd.level",
    "delete.retention.ms", "file.delete.delay.ms", "flush.messages", "flush.ms",
    "follower.replication.throttled.replicas", "index.interval.bytes", "lakestream.table.enabled",
    "lakestream.table.freshness.ms", "lakestream.table.on.delete", "lakestream.table.retention.ms",
    "leader.replication.throttled.replicas", "local.retention.bytes", "local.retention.ms", "max.compaction.lag.ms",
    "max.message.bytes", "message.timestamp.after.max.ms", "message.timestamp.before.max.ms", "message.timestamp.type",
    "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "min.insync.replicas", "preallocate",
    "remote.log.copy.disable", "remote.log.delete.on.disable", "remote.storage.enable", "retention.bytes",
    "retention.ms", "segment.bytes", "segment.index.bytes", "segment.jitter.ms", "segment.ms",
    "unclean.leader.election.enable",
]  # fmt: skip
FIRST_CLUSTER_CONFIGS = [
    "auto.create.topics.enable", "log.retention.bytes", "log.retention.ms", "message.max.bytes", "num.partitions",
]  # fmt: skip


class Folded:
    """A state with one member, at a level."""

    def __init__(self, level: int) -> None:
        self.state = State()
        register = Register(b"i", "c", "broker", "h", 1, "", 1, NEWEST)
        apply(self.state, 1, encode(FIRST, Register.KIND, 0, 0, 0, pack(register)))
        self.state.level = level
        self.n = 0

    def fold(self, body: Body) -> Outcome:
        self.n += 1
        command = encode(body.needed_level(), body.KIND, 0, 1, self.n, pack(body))
        return apply(self.state, self.state.sequence + 1, command)


def created(**configs: str) -> CreateTopic:
    return CreateTopic("t", bytes(16), 1, 1, {name.replace("_", "."): value for name, value in configs.items()})


def test_a_new_config_says_which_level_brought_it() -> None:
    """`apply` below that level refuses the config, as the versions do that have never heard of it."""
    assert sorted(name for name, key in TOPIC_CONFIGS.keys.items() if key.level == FIRST) == FIRST_TOPIC_CONFIGS
    assert sorted(name for name, key in CLUSTER_CONFIGS.keys.items() if key.level == FIRST) == FIRST_CLUSTER_CONFIGS
    assert frozenset({"optimize", "expire", "orphans", "delete", "repair"}) == FIRST_KINDS


@pytest.mark.parametrize("body", [created(of_tomorrow="1"), created(retention_ms="soon")])
def test_configs_that_this_version_does_not_know_fold_from_the_second_level_on(body: CreateTopic) -> None:
    refused = Folded(FIRST).fold(body)
    assert isinstance(refused, No) and refused.reason == Reason.INVALID_CONFIG
    assert Folded(BOUNDED).fold(body) == 1


def test_configs_are_bounded_whatever_they_mean() -> None:
    folded = Folded(BOUNDED)
    folded.fold(created())
    for changes in (
        [("", "1")], [("x" * 250, "1")], [("x", "1" * (VALUE_CHARACTERS_MAX + 1))],
        [(f"x{number}", "1") for number in range(CONFIGS_MAX + 1)],
    ):  # fmt: skip
        for owner in (bytes(16), b""):
            refused = folded.fold(AlterConfigs(owner, changes))  # type: ignore[arg-type]
            assert isinstance(refused, No) and refused.reason == Reason.INVALID_CONFIG
    assert folded.fold(AlterConfigs(b"", [(f"x{number}", "1") for number in range(CONFIGS_MAX)])) is None
    assert isinstance(folded.fold(AlterConfigs(b"", [("one more", "1")])), No)
    assert folded.fold(AlterConfigs(b"", [("x1", None), ("one more", "1")])) is None


def test_a_value_that_this_version_does_not_know_reads_as_the_next_layers_or_the_default() -> None:
    odd, known = {"retention.ms": "a week"}, {"retention.ms": "5"}
    assert TOPIC_CONFIGS.value("retention.ms", odd) == "-1"
    assert TOPIC_CONFIGS.value("retention.ms", odd, known) == "5"
    assert TOPIC_CONFIGS.value("retention.ms", known, odd) == "5"


def test_kinds_of_care_that_this_version_does_not_know_fold_from_the_second_level_on() -> None:
    for level, folds in ((FIRST, False), (BOUNDED, True)):
        folded = Folded(level)
        folded.fold(created())
        outcome = folded.fold(RequestCare(bytes(16), bytes(16), "of-tomorrow", {}))
        assert isinstance(outcome, No) is not folds
        assert isinstance(folded.fold(RequestCare(b"r" * 16, bytes(16), "k" * 65, {})), No)

"""DescribeConfigs and IncrementalAlterConfigs, through the bytes of several versions; and which value wins."""

import asyncio
from typing import Any

import pytest

from lakestream.model.bounds import CONFIGS as BOUND_CONFIGS
from lakestream.model.commands import Leave
from lakestream.model.configs import (
    CLUSTER_CONFIGS,
    STATIC_CONFIGS,
    TOPIC_CONFIGS,
    kafka_names,
    topic_defaults,
    topic_layers,
)
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
)
from lakestream.settings import Settings, table
from tests.support.kafka_calls import ColdBroker, brokers, one_broker

DESCRIBE, ALTER = 32, 44
TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


async def describe(
    broker: ColdBroker, kind: int, name: str, keys: list[str] | None = None, version: int = 4, **more: Any
) -> Any:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    (result,) = (await broker.call(DESCRIBE, DescribeConfigsRequest(resources=[resource], **more), version)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


async def value(broker: ColdBroker, kind: int, name: str, key: str) -> tuple[str, int]:
    (entry,) = (await describe(broker, kind, name, [key])).configs
    return entry.value, entry.config_source


async def alter(broker: ColdBroker, kind: int, name: str, *changes: tuple[str, int, str | None], **more: Any) -> int:
    configs = [AlterableConfig(name=key, config_operation=op, value=new) for key, op, new in changes]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    version = more.pop("version", 1)
    answer = await broker.call(ALTER, IncrementalAlterConfigsRequest(resources=[resource], **more), version)
    (one,) = answer.responses
    assert (one.resource_type, one.resource_name) == (kind, name)
    assert bool(one.error_code) == bool(one.error_message)
    return int(one.error_code)


@pytest.mark.parametrize("version", range(1, 5))
async def test_a_topics_configs_are_described_with_their_sources(version: int) -> None:
    async with one_broker(message_max_bytes="5000") as broker:
        await broker.create("a")
        assert await alter(broker, TOPIC, "a", ("retention.ms", SET, "60000"), version=0) == 0
        result = await describe(broker, TOPIC, "a", version=version)
        assert (result.error_code, result.error_message) == (0, "")
        shown = {entry.name: entry for entry in result.configs}
        assert set(shown) == set(TOPIC_CONFIGS.keys)
        picked = {name: (shown[name].value, shown[name].config_source) for name in ("retention.ms", "segment.bytes")}
        assert picked == {"retention.ms": ("60000", 1), "segment.bytes": ("1073741824", 5)}
        assert (shown["max.message.bytes"].value, shown["max.message.bytes"].config_source) == ("5000", 4)
        assert not any(entry.read_only or entry.is_sensitive or entry.synonyms for entry in result.configs)
        assert shown["retention.ms"].config_type == (5 if version >= 3 else 0)
        assert shown["retention.ms"].documentation is None


async def test_synonyms_and_documentation_are_for_those_who_ask() -> None:
    async with one_broker(message_max_bytes="5000") as broker:
        await broker.create("a")
        assert await alter(broker, BROKER, "", ("message.max.bytes", SET, "6000")) == 0
        assert await alter(broker, TOPIC, "a", ("max.message.bytes", SET, "7000")) == 0
        more = {"include_synonyms": True, "include_documentation": True}
        (entry,) = (await describe(broker, TOPIC, "a", ["max.message.bytes"], **more)).configs
        name = "message.max.bytes"
        assert [(one.name, one.value, one.source) for one in entry.synonyms] == [
            ("max.message.bytes", "7000", 1), (name, "6000", 3), (name, "5000", 4), (name, "1048588", 5),
        ]  # fmt: skip
        assert entry.documentation == TOPIC_CONFIGS.keys["max.message.bytes"].doc


def naming(name: str, *keys: str) -> DescribeConfigsResource:
    return DescribeConfigsResource(resource_type=BROKER, resource_name=name, configuration_keys=list(keys) or None)


async def test_each_naming_of_a_resource_is_answered_as_in_kafka() -> None:
    async with one_broker() as broker:
        asked = DescribeConfigsRequest(resources=[naming("0", "num.partitions"), naming("0", "data"), naming("0")])
        one, other, whole = (await broker.call(DESCRIBE, asked)).results
        assert [entry.name for entry in one.configs] == ["num.partitions"]
        assert [entry.name for entry in other.configs] == ["data"]
        assert set(STATIC_CONFIGS.keys) < {entry.name for entry in whole.configs}


async def test_a_resource_named_very_many_times_cannot_make_an_endless_answer() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        topic = DescribeConfigsResource(resource_type=TOPIC, resource_name="a")
        asked = DescribeConfigsRequest(resources=[naming("0")] * 20_000 + [topic])
        answer = await broker.call(DESCRIBE, asked)
        codes = [result.error_code for result in answer.results]
        assert (codes[0], codes[-2], codes[-1]) == (ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.NONE)
        assert sum(len(result.configs) for result in answer.results) < 11_000


async def test_a_description_of_many_resources_lets_others_have_their_turn() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with one_broker() as broker:
        counting = asyncio.create_task(count_turns())
        many = [naming(str(number)) for number in range(1, 901)]
        answer = await broker.call(DESCRIBE, DescribeConfigsRequest(resources=many))
        counting.cancel()
        assert [one.resource_name for one in answer.results] == [one.resource_name for one in many]
        assert turns > len(many)


async def test_an_empty_list_of_keys_asks_for_all_as_in_kafka() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        assert len((await describe(broker, TOPIC, "a", [])).configs) == len(TOPIC_CONFIGS.keys)
        assert (await describe(broker, TOPIC, "a", ["no.such"])).configs == []


async def test_what_is_not_there_cannot_be_described() -> None:
    async with one_broker() as broker:
        for kind, name, code in (
            (TOPIC, "no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
            (BROKER, "1", ErrorCode.INVALID_REQUEST),
            (BROKER, "me", ErrorCode.INVALID_REQUEST),
            (LOGGER, "0", ErrorCode.INVALID_REQUEST),
        ):
            result = await describe(broker, kind, name)
            assert (result.error_code, result.configs) == (code, []) and result.error_message


async def test_a_topic_made_elsewhere_can_be_described_at_once_L6() -> None:
    async with brokers(2) as (broker, other):
        await broker.create("new")
        assert (await describe(other, TOPIC, "new")).error_code == 0


async def test_a_broker_describes_its_settings_and_where_it_runs() -> None:
    async with brokers(2) as (_, broker):
        shown = {entry.name: entry for entry in (await describe(broker, BROKER, "1")).configs}
        epoch = str(broker.replica.epoch)
        facts = {"lakestream.http": "http1", "lakestream.epoch": epoch, "lakestream.pid": "77"}
        assert {name: shown[name].value for name in facts} == facts
        assert (shown["num.partitions"].value, shown["num.partitions"].config_source) == ("3", 4)
        assert not shown["num.partitions"].read_only
        assert shown["lakestream.pid"].read_only and shown["default.replication.factor"].read_only
        assert (shown["data"].value, shown["data"].is_sensitive) == (None, True)
        assert set(CLUSTER_CONFIGS.keys) | set(STATIC_CONFIGS.keys) <= set(shown)


async def test_a_broker_can_describe_itself_while_the_log_is_away() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        await broker.log.close()
        assert (await describe(broker, BROKER, "0")).error_code == 0
        assert (await describe(broker, TOPIC, "a")).error_code == ErrorCode.LEADER_NOT_AVAILABLE


async def test_the_clusters_configs_are_those_that_were_changed() -> None:
    async with one_broker() as broker:
        assert (await describe(broker, BROKER, "")).configs == []
        assert await alter(broker, BROKER, "", ("num.partitions", SET, "8"), ("log.retention.ms", SET, "9")) == 0
        (_, partitions) = (await describe(broker, BROKER, "")).configs
        assert (partitions.name, partitions.value, partitions.config_source) == ("num.partitions", "8", 3)
        assert await value(broker, BROKER, "0", "num.partitions") == ("8", 3)
        await broker.create("a", partitions=-1)
        assert len(broker.replica.state.topics.by_name["a"].streams) == 8
        assert await value(broker, TOPIC, "a", "retention.ms") == ("9", 3)
        assert await alter(broker, BROKER, "", ("num.partitions", DELETE, None)) == 0
        assert await value(broker, BROKER, "0", "num.partitions") == ("3", 4)


async def test_configs_are_set_and_deleted() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        assert await alter(broker, TOPIC, "a", ("retention.ms", SET, "5"), ("preallocate", SET, " True")) == 0
        assert broker.replica.state.topics.by_name["a"].configs == {"retention.ms": "5", "preallocate": "true"}
        assert await alter(broker, TOPIC, "a", ("retention.ms", DELETE, None), ("no.such", DELETE, None)) == 0
        assert broker.replica.state.topics.by_name["a"].configs == {"preallocate": "true"}


async def test_lists_are_appended_to_and_subtracted_from_starting_at_the_default() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        steps = (
            (APPEND, "compact", "delete,compact"),
            (APPEND, "compact", "delete,compact"),
            (SUBTRACT, "delete", "compact"),
            (SUBTRACT, "compact", ""),
            (SET, "compact, delete", "compact,delete"),
        )
        for operation, given, expected in steps:
            assert await alter(broker, TOPIC, "a", ("cleanup.policy", operation, given)) == 0
            assert (await value(broker, TOPIC, "a", "cleanup.policy"))[0] == expected
        assert await alter(broker, TOPIC, "a", ("retention.ms", APPEND, "1")) == ErrorCode.INVALID_CONFIG


async def test_validating_only_changes_nothing() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        assert await alter(broker, TOPIC, "a", ("retention.ms", SET, "5"), validate_only=True) == 0
        code = await alter(broker, TOPIC, "a", ("retention.ms", SET, "x"), validate_only=True)
        assert code == ErrorCode.INVALID_CONFIG
        assert broker.replica.state.topics.by_name["a"].configs == {}


async def test_changes_that_cannot_be_are_refused_with_kafkas_codes() -> None:
    async with one_broker() as broker:
        await broker.create("a")
        invalid, wrong = ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST
        assert await alter(broker, TOPIC, "a", ("no.such", SET, "1")) == invalid
        assert await alter(broker, TOPIC, "a", ("retention.ms", SET, "-2")) == invalid
        assert await alter(broker, TOPIC, "a", ("remote.storage.enable", SET, "true")) == invalid
        assert await alter(broker, TOPIC, "a", ("leader.replication.throttled.replicas", SET, "0:1,x")) == invalid
        assert await alter(broker, TOPIC, "a", ("min.compaction.lag.ms", SET, "9")) == 0
        assert await alter(broker, TOPIC, "a", ("max.compaction.lag.ms", SET, "8")) == invalid
        assert await alter(broker, TOPIC, "", ("retention.ms", SET, "1")) == wrong
        assert await alter(broker, BROKER, "", ("num.partitions", SET, "x")) == wrong
        assert await alter(broker, TOPIC, "a", ("retention.ms", SET, None)) == wrong
        assert await alter(broker, TOPIC, "a", ("retention.ms", 9, "1")) == wrong
        assert await alter(broker, TOPIC, "a", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None)) == wrong
        assert await alter(broker, TOPIC, "no", ("retention.ms", SET, "1")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await alter(broker, BROKER, "0", ("num.partitions", SET, "1")) == wrong
        assert await alter(broker, BROKER, "", ("data", SET, "elsewhere")) == wrong
        assert await alter(broker, BROKER, "", ("no.such", SET, "1")) == invalid
        assert await alter(broker, LOGGER, "0", ("root", SET, "DEBUG")) == wrong
        twice = [AlterConfigsResource(resource_type=TOPIC, resource_name="a")] * 2
        answer = await broker.call(ALTER, IncrementalAlterConfigsRequest(resources=twice))
        assert [one.error_code for one in answer.responses] == [wrong, wrong]
        await broker.replica.propose(Leave())
        assert await alter(broker, TOPIC, "a", ("retention.ms", SET, "1")) == ErrorCode.NOT_CONTROLLER


def test_every_default_is_a_value_that_could_be_set() -> None:
    for keys in (TOPIC_CONFIGS, CLUSTER_CONFIGS, STATIC_CONFIGS):
        for key in keys.keys.values():
            assert key.default is not None and keys.problem(key.name, key.default) == ""


def test_every_synonym_of_a_topics_config_is_a_brokers() -> None:
    brokers_configs = {**CLUSTER_CONFIGS.keys, **STATIC_CONFIGS.keys}
    for key in TOPIC_CONFIGS.keys.values():
        if key.synonym:
            assert brokers_configs[key.synonym].default == key.default, key.name


def test_the_settings_have_kafkas_names_and_the_same_defaults() -> None:
    settings = Settings()
    shown = kafka_names((name, getattr(settings, name)) for name in table())
    assert shown["auto.create.topics.enable"] == "true"
    for key in (*CLUSTER_CONFIGS.keys.values(), *STATIC_CONFIGS.keys.values()):
        if key.name not in BOUND_CONFIGS:  # limits are the same on every broker: no setting of one of them
            assert shown[key.name] == key.default


def test_a_brokers_settings_are_the_defaults_of_topics() -> None:
    broker = {"message.max.bytes": "7", "num.partitions": "2"}
    assert topic_defaults(broker) == {"max.message.bytes": "7"}
    layers = topic_layers(TOPIC_CONFIGS.keys["max.message.bytes"], {}, {}, broker)
    assert [(layer.value, int(layer.source)) for layer in layers] == [("7", 4), ("1048588", 5)]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("retention.ms", ["-1", "0", str((1 << 63) - 1)], ["-2", "", "1.5", "x", str(1 << 63), "--1"]),
        ("min.cleanable.dirty.ratio", ["0", "0.5", "1"], ["-0.1", "2", "nan", "half"]),
        ("preallocate", ["true", "false"], ["yes", ""]),
        ("cleanup.policy", ["", "delete", "compact,delete"], ["remove", "delete,remove"]),
        ("segment.bytes", ["1048576"], ["14"]),
        ("message.timestamp.type", ["CreateTime", "LogAppendTime"], ["createtime"]),
    ],
)
def test_values_are_judged_as_kafka_judges_them(name: str, good: list[str], bad: list[str]) -> None:
    assert [TOPIC_CONFIGS.problem(name, one) for one in good] == [""] * len(good)
    assert all(TOPIC_CONFIGS.problem(name, one) for one in bad)


@pytest.mark.parametrize("version", [1, 4])
async def test_c9_a_very_long_name_is_refused_with_a_message_that_every_version_can_hold(version: int) -> None:
    async with one_broker() as broker:
        refused = await describe(broker, BROKER, "b" * 32_767, version=version)
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert len(refused.error_message) < 1100 and refused.error_message.endswith(" ...")

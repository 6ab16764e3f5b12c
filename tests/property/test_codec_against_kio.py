"""Every API in every version: our codec and kio's agree, byte for byte and field for field."""

import dataclasses
from random import Random
from typing import Any

import pytest

from lakestream.protocol.kafka.wire import codec
from lakestream.protocol.kafka.wire.apis import APIS, Api
from tests.support.kio_codec import (
    CASES,
    assert_same,
    assert_same_value,
    case_name,
    kio_bytes,
    kio_class,
    kio_read,
    our_class,
    random_entity,
)

ROUNDS = 12


@pytest.mark.parametrize(("api", "version", "kind"), CASES, ids=case_name)
def test_what_kio_writes_we_read_and_write_back_unchanged(api: Api, version: int, kind: str) -> None:
    theirs_class, ours_class = kio_class(api, version, kind), our_class(api, kind)
    assert api.is_flexible(version) == theirs_class.__flexible__
    for seed in range(ROUNDS):
        theirs = random_entity(theirs_class, Random(f"{api.name} {version} {kind} {seed}"))
        data = kio_bytes(theirs)
        ours = codec.decode(ours_class, version, api.is_flexible(version), memoryview(data))
        assert_same(theirs, ours)
        again = bytes(codec.encode(ours, version, api.is_flexible(version)))
        assert again == data
        assert_same(kio_read(theirs_class, again), ours)


@pytest.mark.parametrize("api", APIS.values(), ids=case_name)
def test_a_message_of_which_nothing_is_said_is_valid_in_every_version(api: Api) -> None:
    for version in range(max(api.min_version, api.readable_from), api.max_version + 1):
        for kind in ("request", "response"):
            ours = our_class(api, kind)()
            data = bytes(codec.encode(ours, version, api.is_flexible(version)))
            assert_same(kio_read(kio_class(api, version, kind), data), ours)


@pytest.mark.parametrize(("api", "version", "kind"), CASES, ids=case_name)
def test_defaults_are_those_that_kio_took_from_the_schemas(api: Api, version: int, kind: str) -> None:
    _assert_defaults(kio_class(api, version, kind), our_class(api, kind)())


def _assert_defaults(theirs: Any, ours: Any) -> None:
    for field in dataclasses.fields(theirs):
        if field.default is not dataclasses.MISSING:
            name = field.name if hasattr(ours, field.name) else field.name + "_ms"
            assert_same_value(field.default, getattr(ours, name), f"{type(ours).__name__}.{name}")

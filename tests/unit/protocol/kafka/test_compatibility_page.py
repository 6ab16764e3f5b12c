"""docs/COMPATIBILITY.md says what the code does: its tables are made from the dispatch table and the tables of configs.

After a change of those run `python -m tests.unit.protocol.kafka.test_compatibility_page`, which writes the tables anew.
"""

import re
from collections.abc import Callable, Iterable

import pytest

from lakestream.model.configs import CLUSTER_CONFIGS, STATIC_CONFIGS, TOPIC_CONFIGS, ConfigKey
from lakestream.protocol.kafka.wire.apis import APIS, Api
from tests.support.places import ROOT

PAGE = ROOT / "docs" / "COMPATIBILITY.md"


def api_table() -> str:
    return _table(("API", "key", "versions"), ((api.name, str(api.key), _versions(api)) for api in APIS.values()))


def topic_table() -> str:
    obeyed = [key for key in TOPIC_CONFIGS.keys.values() if key.effective]
    rows = ((f"`{k.name}`", f"`{k.default}`", f"`{k.synonym}`" if k.synonym else "", k.doc) for k in obeyed)
    return _table(("config", "default", "the broker's", "what it does"), rows)


def ignored_table() -> str:
    ignored = sorted(key.name for key in TOPIC_CONFIGS.keys.values() if not key.effective)
    return ", ".join(f"`{name}`" for name in ignored)


def broker_table() -> str:
    def rows(keys: Iterable[ConfigKey], changed: str) -> list[tuple[str, ...]]:
        return [(f"`{key.name}`", f"`{key.default}`", changed, key.doc) for key in keys]

    all_rows = rows(CLUSTER_CONFIGS.keys.values(), "yes") + rows(STATIC_CONFIGS.keys.values(), "no")
    return _table(("config", "default", "changed while running", "what it does"), all_rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "apis": api_table,
    "topic configs": topic_table,
    "ignored configs": ignored_table,
    "broker configs": broker_table,
}


def _versions(api: Api) -> str:
    span = f"{api.min_version}" if api.min_version == api.max_version else f"{api.min_version}-{api.max_version}"
    if api.readable_from > api.min_version:
        return f"{span} (below {api.readable_from} advertised only, as in Kafka)"
    return span


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _block(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name}: made from the code -->\n)(.*?)(<!-- end -->)", re.DOTALL)


@pytest.mark.parametrize("name", BLOCKS)
def test_the_page_agrees_with_the_code(name: str) -> None:
    found = _block(name).search(PAGE.read_text())
    assert found is not None, f"{PAGE.name} has no block {name!r}"
    assert found[2] == BLOCKS[name]() + "\n", "run python -m tests.unit.protocol.kafka.test_compatibility_page"


def test_every_api_that_departs_from_kafka_is_one_we_have() -> None:
    departures = PAGE.read_text().split("## Departures from Kafka")[1].split("\n## ")[0]
    names = {name for row in re.findall(r"^\| ([\w, ]+) \|", departures, re.MULTILINE) for name in row.split(", ")}
    assert names - {"API"} <= {api.name for api in APIS.values()}


def main() -> None:
    text = PAGE.read_text()
    for name, make in BLOCKS.items():
        made = make()
        text = _block(name).sub(lambda found, made=made: found[1] + made + "\n" + found[3], text)  # type: ignore[misc]
    PAGE.write_text(text)


if __name__ == "__main__":
    main()

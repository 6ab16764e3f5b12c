"""T13: two snapshots compared by their rows, with delete files, foreign formats and files in forbidden places."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakestream.data.tables.foreign import rows as row_rules
from lakestream.data.tables.foreign.allowed_changes import Refused
from lakestream.data.tables.foreign.rows import judge_rows
from lakestream.data.tables.iceberg.manifests.files import (
    ADDED,
    DATA,
    DELETES,
    EXISTING,
    layout,
    write_manifest,
    write_manifest_list,
)
from lakestream.data.tables.iceberg.topic_table import topic_schema
from lakestream.data.tables.stores.table_store import FolderTableStore
from tests.support.landed_table import rows

SPEC: dict[str, Any] = {"spec-id": 0, "fields": []}
HOW = layout({**topic_schema(), "schema-id": 0}, SPEC)


@dataclass
class Table:
    """Makes files and snapshots in a folder."""

    store: FolderTableStore
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    made: int = 0

    def name(self, kind: str) -> str:
        self.made += 1
        return f"{self.store.root}/t/{kind}-{self.made}"

    def _add(self, table: pa.Table, content: int, **more: Any) -> str:
        path = self.name("f") + ".parquet"
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=1000)
        data = sink.getvalue().to_pybytes()
        self.store.put(path, data)
        self.files[path] = {
            "content": content, "file_path": path, "file_format": "PARQUET", "partition": {},
            "record_count": table.num_rows, "file_size_in_bytes": len(data), "column_sizes": None, "value_counts": None,
            "null_value_counts": None, "nan_value_counts": None, "lower_bounds": None, "upper_bounds": None,
            "key_metadata": None, "split_offsets": None, "equality_ids": None, "sort_order_id": None, **more,
        }  # fmt: skip
        return path

    def data(self, offsets: Sequence[int], partition: int = 0, **more: Any) -> str:
        return self._add(rows(offsets, partition), DATA, **more)

    def deletes(self, *gone: tuple[str, int], content: int = 1) -> str:
        paths, positions = zip(*sorted(gone), strict=True)
        return self._add(pa.table({"file_path": paths, "pos": pa.array(positions, pa.int64())}), content)

    def snapshot(self, sequence: int, *files: str | tuple[str, int]) -> dict[str, Any]:
        """A snapshot of these files; a file with a number has that sequence number, the others their birth's."""
        listed = []
        for content in (DATA, DELETES):
            entries = []
            for file in files:
                path, number = (file, 1) if isinstance(file, str) else file
                if (self.files[path]["content"] == DATA) == (content == DATA):
                    status = ADDED if number == sequence else EXISTING
                    entries.append(
                        ({"status": status, "snapshot_id": 1, "sequence_number": number, "file_sequence_number": number,
                          "data_file": self.files[path]}, None)
                    )  # fmt: skip
            if entries:
                place = self.name("m")
                one, data = write_manifest(place, HOW, content, entries, sequence, sequence, bytes(16))
                self.store.put(place, data)
                listed.append(one)
        place = self.name("l")
        self.store.put(place, write_manifest_list(listed, sequence, None, sequence, bytes(16)))
        return {"snapshot-id": sequence, "manifest-list": place}

    def judge(self, old: dict[str, Any] | None, new: dict[str, Any]) -> None:
        judge_rows(self.store, self.store.root, old, new, Random(1))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(FolderTableStore(tmp_path))


def test_a_merge_on_read_delete_passes_without_a_look_at_the_rows(table: Table) -> None:
    file = table.data([0, 1, 2])
    gone = table.deletes((file, 1))
    old, new = table.snapshot(1, file), table.snapshot(2, file, (gone, 2))
    table.store.delete([file])
    table.judge(old, new)


def test_a_merge_on_read_update_passes_and_an_insert_in_its_guise_does_not(table: Table) -> None:
    file, other = table.data([0, 1, 2]), table.data([3])
    gone = table.deletes((file, 1))
    old = table.snapshot(1, file, other)
    table.judge(old, table.snapshot(2, file, other, (gone, 2), (table.data([1]), 2)))
    with pytest.raises(Refused, match=r"offset 2\) would be in the table twice"):
        table.judge(old, table.snapshot(2, file, other, (gone, 2), (table.data([2]), 2)))
    with pytest.raises(Refused, match="would be new"):
        table.judge(old, table.snapshot(2, file, other, (gone, 2), (table.data([4]), 2)))


def test_a_rewrite_applies_the_deletes_and_does_not_forget_them(table: Table) -> None:
    file = table.data([0, 1, 2, 3])
    gone = table.deletes((file, 1), (file, 3))
    old = table.snapshot(2, file, (gone, 2))
    table.judge(old, table.snapshot(3, (table.data([2, 0]), 3)))
    with pytest.raises(Refused, match=r"offset 1\) would be new"):
        table.judge(old, table.snapshot(3, (table.data([0, 1, 2]), 3)))


def test_a_delete_file_may_be_replaced_but_not_dropped(table: Table) -> None:
    file = table.data([0, 1, 2, 3])
    one, two, both = table.deletes((file, 1)), table.deletes((file, 3)), table.deletes((file, 1), (file, 3))
    old = table.snapshot(3, file, (one, 2), (two, 3))
    table.judge(old, table.snapshot(4, file, (both, 4)))
    with pytest.raises(Refused, match=r"offset 3\) would be new"):
        table.judge(old, table.snapshot(4, file, (one, 2)))


def test_a_later_sequence_number_does_not_lift_a_file_over_its_deletes(table: Table) -> None:
    file = table.data([0, 1, 2])
    gone = table.deletes((file, 1))
    old = table.snapshot(2, file, (gone, 2))
    with pytest.raises(Refused, match="would be new"):
        table.judge(old, table.snapshot(3, (file, 3), (gone, 2)))


def test_whole_files_may_go_and_an_empty_change_is_one(table: Table) -> None:
    files = [table.data([0, 1]), table.data([2])]
    old = table.snapshot(1, *files)
    table.judge(old, table.snapshot(2, files[0]))
    table.judge(old, table.snapshot(2, *files))
    table.judge(old, table.snapshot(2))


def test_equality_deletes_other_formats_and_files_there_twice_are_refused(table: Table) -> None:
    file = table.data([0, 1])
    old = table.snapshot(1, file)
    with pytest.raises(Refused, match="equality"):
        table.judge(old, table.snapshot(2, file, (table.deletes((file, 1), content=2), 2)))
    with pytest.raises(Refused, match="ORC"):
        table.judge(old, table.snapshot(2, (table.data([0, 1], file_format="ORC"), 2)))
    with pytest.raises(Refused, match="in the table twice"):
        table.judge(old, table.snapshot(2, file, file))
    with pytest.raises(Refused, match="has 2 rows, not 3"):
        table.judge(old, table.snapshot(2, (table.data([0, 1], record_count=3), 2)))


@pytest.mark.parametrize("place", ["file:///etc/passwd", "{root}/../x.parquet", "s3://other/x", "x"])
def test_files_outside_the_warehouse_are_refused(table: Table, place: str) -> None:
    file = table.data([0, 1])
    old = table.snapshot(1, file)
    forged = table.data([0, 1])
    table.files[forged]["file_path"] = place.format(root=table.store.root)
    with pytest.raises(Refused, match=r"warehouse|own folder"):
        table.judge(old, table.snapshot(2, (forged, 2)))
    with pytest.raises(Refused, match=r"warehouse|own folder"):
        table.judge(old, {"snapshot-id": 2, "manifest-list": place.format(root=table.store.root)})


def test_a_file_that_is_no_parquet_is_refused(table: Table) -> None:
    file = table.data([0, 1])
    place = table.name("f")
    table.store.put(place, b"PAR1 this is none PAR1" * 10)
    table.files[place] = {**table.files[file], "file_path": place, "file_size_in_bytes": 220}
    with pytest.raises(Refused, match="no Parquet file"):
        table.judge(table.snapshot(1, file), table.snapshot(2, (place, 2)))


def test_rows_without_or_with_absurd_offsets_are_refused(table: Table) -> None:
    old = table.snapshot(1, table.data([0, 1]))
    for offset in (-1, 1 << 60):
        with pytest.raises(Refused, match="cannot be"):
            table.judge(old, table.snapshot(2, (table.data([offset]), 2)))


def test_an_empty_table_takes_no_rows(table: Table) -> None:
    with pytest.raises(Refused, match="would be new"):
        table.judge(None, table.snapshot(1, table.data([0])))


def test_many_rows_are_compared_in_passes(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_rules, "ROWS_AT_ONCE", 1000)
    old = table.snapshot(1, *(table.data(range(n, n + 1000), p) for p in (0, 1) for n in (0, 1000)))
    new = [table.data(range(1999, -1, -1)), table.data(range(2000), 1)]
    table.judge(old, table.snapshot(2, *((file, 2) for file in new)))
    less = [table.data(range(0, 2000, 2)), table.data(range(1, 2000, 3), 1)]
    table.judge(old, table.snapshot(2, *((file, 2) for file in less)))
    with pytest.raises(Refused, match=r"partition 1, offset 2000\) would be new"):
        table.judge(old, table.snapshot(2, (new[0], 2), (table.data(range(1, 2001), 1), 2)))
    with pytest.raises(Refused, match="twice"):
        table.judge(old, table.snapshot(2, (new[0], 2), (new[1], 2), (table.data([7]), 2)))

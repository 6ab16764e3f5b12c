"""Finds WAL objects and table files that should not exist, or that are missing.

Objects that the collector and the sweep have had no time to remove are no findings; ages are those of the objects.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lakestream.data.tables.stores.table_store import DatedStore
from lakestream.lake.verify.report import Finding, FindingKind
from lakestream.model.batches.wal_object import merged_prefix, wal_prefix
from lakestream.model.catalog.names import STREAMS, warehouse_uri
from lakestream.model.state import State
from lakestream.stream.housekeeping.collector import judge, read_names
from lakestream.stream.long_work import at_once
from lakestream.stream.reader import key_of

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GracePeriods:
    """The age at which an object without references becomes a finding."""

    wal_ms: int
    rounds_ms: int = 900_000
    """Files of our own rounds: the sweep comes every five minutes."""
    others_ms: int = 3 * DAY_MS
    """Everything else in a table's folder: writers of other engines may be slow (T12)."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """Which data files our pipelines wrote, and which of those are of rounds that have ended by a state (T12)."""

    is_ours: Callable[[str], bool]
    over: Callable[[Iterable[str], State], Sequence[str]]


Listed = Sequence[tuple[str, int, int]]
"""URI, size, time of the last change."""


def list_wal(store: DatedStore, cluster: str) -> Listed:
    return [
        one
        for prefix in (wal_prefix(cluster), merged_prefix(cluster))
        for one in store.list_dated(f"{store.root}/{prefix}")
    ]


def list_table(store: DatedStore, folder: str) -> Listed:
    return store.list_dated(f"{folder}/")


def check_wal(
    before: State, listed: Listed, after: State, root: str, patience: GracePeriods, now_ms: int
) -> list[Finding]:
    """Objects that no state refers to, and objects that entries point to and that are not there.

    The listing was made between the two states: what is judged garbage by the later one stays garbage (L22), and what
    is alive in both was there all the time.
    """
    keys = {uri[len(root) + 1 :]: (uri, changed_ms) for uri, _, changed_ms in listed}
    listing = at_once(read_names(list(keys), after.cluster))
    verdict = at_once(judge(listing, after, [], patience.wal_ms))
    leaked = [*verdict.orphans, *(key for _, key in verdict.dead if key in keys)]
    text = "an object that no state refers to and the collector left"
    findings = [
        Finding(kind=FindingKind.WAL_LEAKED, text=text, place=keys[key][0])
        for key in leaked
        if keys[key][1] <= now_ms - patience.wal_ms
    ]
    for number in sorted(before.streams.objects.keys() & after.streams.objects.keys()):
        key = key_of(after.cluster, after.streams.objects[number])
        if key not in keys:
            text = "records that have not landed lie in an object that is not there"
            findings.append(Finding(kind=FindingKind.WAL_MISSING, text=text, place=f"{root}/{key}"))
    return findings


def check_warehouse(store: DatedStore, state: State, patience: GracePeriods, now_ms: int) -> list[Finding]:
    """Folders among those of the topics' tables that are of no table, and of none that is being purged."""
    place = f"{warehouse_uri(store.root, state.cluster)}/{STREAMS}/"
    known, found = state.catalog.places(), []
    for folder in store.folders(place):
        ages = [changed_ms for _, _, changed_ms in store.list_dated(f"{folder}/")] if folder not in known else []
        if ages and max(ages) <= now_ms - patience.others_ms:
            text = "a table's folder, but of no table that there is"
            found.append(Finding(kind=FindingKind.ORPHAN, text=text, place=folder))
    return found


def check_orphans(
    topic: str,
    listed: Listed,
    known: set[str],
    ownership: Ownership,
    state: State,
    patience: GracePeriods,
    now_ms: int,
) -> list[Finding]:
    """Files in the table's folder without references. Files of rounds under way may still be committed (T12)."""
    suspects = {uri: changed_ms for uri, _, changed_ms in listed if uri not in known}
    ours = set(ownership.over(suspects, state))
    findings = []
    for uri, changed_ms in suspects.items():
        if uri not in ours and ownership.is_ours(uri):
            continue
        grace_ms = patience.rounds_ms if uri in ours else patience.others_ms
        if changed_ms <= now_ms - grace_ms:
            text = "a file of a round that has ended, but in no snapshot" if uri in ours else "a file in no snapshot"
            findings.append(Finding(kind=FindingKind.ORPHAN, text=text, topic=topic, place=uri))
    return findings

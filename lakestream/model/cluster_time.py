"""Cluster time: one time for the whole cluster, made of wall clocks that may be wrong (L14).

Long times (retention, expiry, the grace of dead objects) count in cluster time. It never goes back, and a clock that is
wrong must neither stop it nor make it leap. Each member has a vote, which follows its wall clock from heartbeat to
heartbeat:

    the clock agrees         up to 10 seconds behind cluster time, up to an hour ahead: the vote is the clock
    the clock lies behind    the vote goes on from cluster time by what passes on that clock
    the clock lies ahead     likewise, until it was ahead for several heartbeats in a row: then the vote is the clock

Cluster time is the lower median of the votes, one for each host, since members of one host share its clock.
docs/decisions/0008-cluster-time.md has the reasons.
"""

from collections.abc import Sequence

BEHIND_MS = 10_000
"""A clock that was set back by less than this is waited for."""
JUMP_MS = 3_600_000
"""A clock further ahead than this has to be so for a while."""
JUMP_HEARTBEATS = 5
"""The heartbeat in a row with which a clock that is far ahead is believed."""


def follow_clock(cluster_ms: int, vote_ms: int, ahead: int, before_ms: int, clock_ms: int) -> tuple[int, int]:
    """A member's vote, and for how many heartbeats in a row its clock is far ahead, after a heartbeat.

    `vote_ms` and `ahead` are those of before; `before_ms` and `clock_ms` what its clock said then (0: nothing yet) and
    says now. A vote of 0 is none.
    """
    if not clock_ms:
        return 0, 0
    if not cluster_ms or agrees(cluster_ms, clock_ms):
        return clock_ms, 0
    passed_ms = clock_ms - before_ms
    steady = before_ms > 0 and -BEHIND_MS <= passed_ms <= JUMP_MS
    if clock_ms > cluster_ms:
        ahead = ahead + 1 if steady else 1
        if ahead >= JUMP_HEARTBEATS:
            return clock_ms, ahead
    else:
        ahead = 0
    if not steady or not agrees(cluster_ms, vote_ms):
        return cluster_ms, ahead
    return vote_ms + passed_ms, ahead


def agrees(cluster_ms: int, time_ms: int) -> bool:
    """Whether a time may be cluster time, given what it was a moment ago."""
    return -BEHIND_MS <= time_ms - cluster_ms <= JUMP_MS


def stamp_time(cluster_ms: int, clock_ms: int) -> int:
    """What a broker stamps records with: its clock; cluster time if the clock is far ahead of that.

    Append times never go back in a partition (append_times.py): one that is a year ahead would stay for a year.
    """
    return clock_ms if not cluster_ms or clock_ms - cluster_ms <= JUMP_MS else cluster_ms


def agreed_time(votes: Sequence[tuple[str, int]]) -> int:
    """The lower median over hosts of the lower median of each host's votes, given as (host, vote); 0 without votes."""
    hosts: dict[str, list[int]] = {}
    for host, time_ms in votes:
        hosts.setdefault(host, []).append(time_ms)
    return _lower_median([_lower_median(of_host) for of_host in hosts.values()])


def _lower_median(times: list[int]) -> int:
    return sorted(times)[(len(times) - 1) // 2] if times else 0

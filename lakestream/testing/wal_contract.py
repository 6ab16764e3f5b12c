"""The contract of `Wal` as a check for authors of a WAL. It raises AssertionError with the rule that is broken.

    async def make() -> Wal: return MyWal("some folder")
    await check_wal(make, persistent=True)

If the stored objects outlive a `close`, each call of `make` has to open the same store. The check writes and deletes
only below its key prefix.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from lakestream.errors import Exists, LakestreamError, Missing
from lakestream.interfaces import Wal

MakeWal = Callable[[], Awaitable[Wal]]
MB = 1024 * 1024
RACERS = 8


async def check_wal(make: MakeWal, *, persistent: bool = True, prefix: str = "check-wal") -> None:
    """Run all checks. `persistent`: objects are still there after a `close` and the next `make`."""
    wal = await make()
    assert wal.linger_ms >= 0, "linger_ms must not be negative"
    try:
        for check in _CHECKS:
            title = check.__name__.strip("_")
            try:
                await check(wal, f"{prefix}/{title}")
            except LakestreamError as error:
                raise AssertionError(f"{title.replace('_', ' ')}: the WAL raised {error!r} instead") from error
        left = [stored.key for stored in await wal.list(prefix + "/")]
        await wal.delete(left)
        assert not await wal.list(prefix + "/"), "objects are listed after they were deleted"
    finally:
        await wal.close()
    if persistent:
        await _check_reopening(make, f"{prefix}/reopening")


async def _what_was_put_is_read_back(wal: Wal, at: str) -> None:
    await wal.put(f"{at}/1", [b"abc", bytearray(b"def"), memoryview(b"xghix")[1:-1]])
    read = await wal.read(f"{at}/1", [(0, 9), (3, 3), (8, 1), (0, 0)])
    assert read == [b"abcdefghi", b"def", b"i", b""], f"put in three parts, read back as {read}"
    assert all(type(part) is bytearray for part in read), "read has to give bytearrays, which callers may change"
    read[0][:] = b"changed!!"
    again = await wal.read(f"{at}/1", [(0, 9)])
    assert again == [b"abcdefghi"], "a caller's change of what it read shows in the object"
    assert await wal.read(f"{at}/1", []) == [], "no ranges have to give no parts"


async def _ranges_come_in_the_order_asked(wal: Wal, at: str) -> None:
    data = _pattern(3 * MB)
    await wal.put(f"{at}/1", [data])
    ranges = [(2 * MB, 10), (0, 10), (5, 1 * MB), (MB, 1), (0, 3 * MB), (2 * MB + 5, 100_000), (3, 3)]
    read = await wal.read(f"{at}/1", ranges)
    for (start, length), part in zip(ranges, read, strict=True):
        assert part == data[start : start + length], f"the range {start}+{length} holds other bytes than were put there"


async def _a_range_is_cut_at_the_end(wal: Wal, at: str) -> None:
    await wal.put(f"{at}/1", [b"0123456789"])
    ranges = [(8, 100), (0, MB), (10, 5), (1000, 5), (0, 1)]
    read = await wal.read(f"{at}/1", ranges)
    assert read == [b"89", b"0123456789", b"", b"", b"0"], f"ranges beyond the end must be cut, got {read}"
    assert await wal.read(f"{at}/1", [(500, 1)]) == [b""], "a range beyond the end must be empty"


async def _what_is_not_there_is_missing(wal: Wal, at: str) -> None:
    for ranges in ([(0, 1)], [(0, 0)], [(5, 10), (100, 10)]):
        await _expect(Missing, wal.read(f"{at}/nothing", ranges), "reading an object that was never put")
    await wal.put(f"{at}/1", [b"x"])
    await _expect(Missing, wal.read(f"{at}/1/below", [(0, 1)]), "reading below a key")
    await _expect(Missing, wal.read(at, [(0, 1)]), "reading what is only the start of a key")
    await wal.delete([f"{at}/1"])
    await _expect(Missing, wal.read(f"{at}/1", [(0, 1)]), "reading a deleted object")


async def _a_key_is_created_only_once_l21(wal: Wal, at: str) -> None:
    await wal.put(f"{at}/1", [b"first"])
    for other in ([b"other"], [b"firs"], [b"first!"], [], [b"x" * MB]):
        await _expect(Exists, wal.put(f"{at}/1", other), "putting other bytes under a key that is taken")
    await wal.put(f"{at}/1", [b"fi", b"", b"rst"])
    assert await wal.read(f"{at}/1", [(0, 10)]) == [b"first"], "a refused put changed the object"
    await wal.delete([f"{at}/1"])
    await wal.put(f"{at}/1", [b"other"])
    assert await wal.read(f"{at}/1", [(0, 10)]) == [b"other"], "a key must be free again after delete"


async def _of_racing_creates_one_wins(wal: Wal, at: str) -> None:
    bodies = [_pattern(100_000, racer) for racer in range(RACERS)]
    outcomes = await asyncio.gather(*(wal.put(f"{at}/1", [body]) for body in bodies), return_exceptions=True)
    winners = [body for body, outcome in zip(bodies, outcomes, strict=True) if outcome is None]
    others = [outcome for outcome in outcomes if outcome is not None]
    assert all(isinstance(outcome, Exists) for outcome in others), f"losers of a race must get Exists, got {others}"
    assert len(winners) == 1, f"{len(winners)} of {RACERS} racing creates of one key succeeded"
    assert await wal.read(f"{at}/1", [(0, MB)]) == winners, "the object is not what the winner of the race put"
    await asyncio.gather(*(wal.put(f"{at}/same", [bodies[0]]) for _ in range(RACERS)))


async def _lists_are_in_order_and_by_prefix(wal: Wal, at: str) -> None:
    names = ["b/2", "b/10", "b/1", "a/z/z", "a/y", "bb/1", "b-/1", "c"]
    await asyncio.gather(*(wal.put(f"{at}/{name}", [b"x" * size]) for size, name in enumerate(names)))
    expected = sorted((f"{at}/{name}", size) for size, name in enumerate(names))
    for prefix in (f"{at}/", at, f"{at}/b", f"{at}/b/", f"{at}/b/1", f"{at}/a/z/", f"{at}/c", f"{at}/nothing/"):
        listed = [(stored.key, stored.size) for stored in await wal.list(prefix)]
        wanted = [(key, size) for key, size in expected if key.startswith(prefix)]
        assert listed == wanted, f"the list of {prefix!r} must be {wanted}, it is {listed}"


async def _lists_begin_behind_a_key(wal: Wal, at: str) -> None:
    """Keys have the form of WAL objects' keys: numbers and letters between slashes."""
    keys = [f"{at}/{member}/{number:05d}" for member in (0, 1, 10, 2) for number in (3, 1, 20)]
    await asyncio.gather(*(wal.put(key, [b"x"]) for key in keys))
    for after in ("", f"{at}/1/00003", f"{at}/1/00004", f"{at}/1/~", f"{at}/3/00001", f"{at}/~"):
        for prefix in (f"{at}/", f"{at}/1/"):
            behind = sorted(key for key in keys if key > after and key.startswith(prefix))
            listed = [stored.key for stored in await wal.list(prefix, after)]
            assert listed == behind, f"behind {after!r} there are {behind}, not {listed}"
            first = [stored.key for stored in await wal.list(prefix, after, 2)]
            assert first == behind[: max(len(first), min(2, len(behind)))], f"{first} are not the first two"


async def _delete_forgives(wal: Wal, at: str) -> None:
    keys = [f"{at}/{number}" for number in range(20)]
    await asyncio.gather(*(wal.put(key, [b"x"]) for key in keys))
    await wal.delete([])
    await wal.delete([keys[0], f"{at}/never", keys[1], f"{at}/not/a/place", keys[2]])
    await wal.delete(keys[:3])
    listed = [stored.key for stored in await wal.list(f"{at}/")]
    assert listed == sorted(keys[3:]), f"three of twenty were deleted, still listed are {listed}"
    await wal.delete(keys)
    assert await wal.list(f"{at}/") == [], "deleted objects are still listed"


async def _puts_and_deletes_do_not_disturb_each_other(wal: Wal, at: str) -> None:
    """The keys share a directory, which a WAL in a folder may remove when it is empty."""

    async def come_and_go(number: int) -> None:
        for turn in range(5):
            await wal.put(f"{at}/shared/place/{number}-{turn}", [b"x" * number])
            await wal.delete([f"{at}/shared/place/{number}-{turn}"])

    await asyncio.gather(*(come_and_go(number) for number in range(RACERS)))
    assert await wal.list(f"{at}/") == [], "deleted objects are still listed"


async def _sizes_and_numbers_of_parts_do_not_matter(wal: Wal, at: str) -> None:
    big = _pattern(8 * MB)
    many = [big[start : start + 211] for start in range(0, 5_000 * 211, 211)]
    bodies: dict[str, Sequence[bytes]] = {"big": [big], "many": many, "none": [], "empty": [b"", b""]}
    for name, parts in bodies.items():
        await wal.put(f"{at}/{name}", parts)
        whole = b"".join(parts)
        assert await wal.read(f"{at}/{name}", [(0, 9 * MB)]) == [whole], f"{name}: read is not what was put"
        await wal.put(f"{at}/{name}", [whole])
    sizes = {stored.key: stored.size for stored in await wal.list(f"{at}/")}
    expected = {f"{at}/{name}": sum(map(len, parts)) for name, parts in bodies.items()}
    assert sizes == expected, f"the listed sizes must be {expected}, they are {sizes}"


async def _nothing_half_written_is_listed(wal: Wal, at: str) -> None:
    bodies = {f"{at}/{number}": _pattern(2 * MB, number) for number in range(6)}
    writing = asyncio.gather(*(wal.put(key, [body[:MB], body[MB:]]) for key, body in bodies.items()))
    while True:
        done = writing.done()
        for stored in await wal.list(f"{at}/"):
            assert stored.size == 2 * MB, f"{stored.key} is listed with {stored.size} bytes while it is written"
            read = await wal.read(stored.key, [(0, stored.size)])
            assert read == [bodies[stored.key]], f"{stored.key} is listed and not whole"
        if done:
            break
        await asyncio.sleep(0)
    await writing
    assert len(await wal.list(f"{at}/")) == len(bodies), "an object is not listed after its put came back"


async def _check_reopening(make: MakeWal, at: str) -> None:
    wal = await make()
    await wal.put(f"{at}/1", [b"stays"])
    await wal.close()
    wal = await make()
    try:
        listed = [(stored.key, stored.size) for stored in await wal.list(f"{at}/")]
        assert listed == [(f"{at}/1", 5)], f"a reopened WAL lists {listed}"
        assert await wal.read(f"{at}/1", [(0, 5)]) == [b"stays"], "a reopened WAL holds other bytes"
        await _expect(Exists, wal.put(f"{at}/1", [b"other"]), "putting other bytes after reopening")
        await wal.put(f"{at}/1", [b"stays"])
        await wal.delete([f"{at}/1"])
        assert await wal.list(f"{at}/") == [], "deleted objects are still listed"
    finally:
        await wal.close()


async def _expect(kind: type[Exception], call: Awaitable[object], what: str) -> None:
    try:
        answer = await call
    except kind:
        return
    raise AssertionError(f"{what} must raise {kind.__name__}, it gave {answer!r}")


def _pattern(size: int, seed: int = 0) -> bytes:
    """Bytes that differ at every place from those of another seed, and do not repeat within a page."""
    block = b"".join((seed * 1_000_003 + number).to_bytes(4, "big") for number in range(4099))
    return (block * (size // len(block) + 1))[:size]


_CHECKS = (
    _what_was_put_is_read_back,
    _ranges_come_in_the_order_asked,
    _a_range_is_cut_at_the_end,
    _what_is_not_there_is_missing,
    _a_key_is_created_only_once_l21,
    _of_racing_creates_one_wins,
    _lists_are_in_order_and_by_prefix,
    _lists_begin_behind_a_key,
    _delete_forgives,
    _puts_and_deletes_do_not_disturb_each_other,
    _sizes_and_numbers_of_parts_do_not_matter,
    _nothing_half_written_is_listed,
)

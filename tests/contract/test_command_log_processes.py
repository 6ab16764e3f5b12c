"""The SQLite command log among real processes: kill -9, lost answers, stopped clients, an owner that comes back."""

import asyncio
import contextlib
import os
import random
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lakestream.errors import Halted, Retry, Unknown
from lakestream.interfaces import CommandLog, Logged
from lakestream.metadata.stores import wire
from lakestream.metadata.stores.owner import Owner
from lakestream.metadata.stores.socket_client import SocketLog
from lakestream.metadata.stores.sqlite import SqliteLog

WRITER = """
import asyncio, sys, uvloop
from lakestream.errors import Retry, Unknown
from lakestream.metadata.stores.socket_client import SocketLog
from lakestream.metadata.stores.sqlite import SqliteLog

async def main(kind, path, name):
    log = await (SqliteLog.open(path) if kind == "sqlite" else SocketLog.open(path))
    turn = 0
    while True:
        turn += 1
        commands = [b"%s.%d.%d" % (name.encode(), turn, index) for index in range(1 + turn % 3)]
        try:
            appended = await log.append(commands, 1 << 62)
        except (Retry, Unknown) as error:
            print(type(error).__name__, turn, flush=True)
            continue
        for sequence, command in enumerate(commands, appended.first):
            print("acked", sequence, command.decode(), flush=True)

uvloop.run(main(*sys.argv[1:]))
"""


class Writer:
    """A child that appends in a loop and prints what was acknowledged."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[list[str]] = []
        self._more = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, kind: str, path: Path, name: str) -> "Writer":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WRITER, kind, str(path), name), stdout=asyncio.subprocess.PIPE
        )
        return cls(process)

    @property
    def acked(self) -> list[Logged]:
        return [(int(line[1]), line[2].encode()) for line in self.lines if line[0] == "acked" and len(line) == 3]

    async def acks(self, more: int) -> None:
        """Wait for that many acknowledgements from now on."""
        goal = len(self.acked) + more
        async with asyncio.timeout(20):
            while len(self.acked) < goal:
                self._more.clear()
                await self._more.wait()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reader

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            if line.endswith(b"\n"):  # a line cut by the kill may hold half a number
                self.lines.append(line.decode().split())
                self._more.set()


async def start_owner(database: Path, socket_path: Path) -> asyncio.subprocess.Process:
    """An owner that serves."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lakestream.metadata.stores.owner", str(database), str(socket_path)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None and await process.stdout.readline() == b"ready\n"
    return process


@contextlib.asynccontextmanager
async def an_owner(folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await start_owner(folder / "log.db", folder / "s")
    try:
        yield process
    finally:
        await _kill(process)


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


async def _everything(log: CommandLog) -> list[Logged]:
    commands: list[Logged] = []
    while fresh := (await log.read(len(commands), 1000))[1 if commands else 0 :]:
        commands += fresh
    return commands


def _check(held: list[Logged], acked: list[Logged]) -> None:
    assert [sequence for sequence, _ in held] == list(range(1, len(held) + 1)), "gapless"
    assert acked, "the writers got nowhere"
    by_sequence = dict(held)
    assert [(sequence, by_sequence.get(sequence)) for sequence, _ in acked] == acked, "acked commands are there"
    names = [command for _, command in held]
    assert len(set(names)) == len(names), "an append that nobody repeated is there once"
    for turn, number in _sizes(held).items():
        assert number == 1 + int(turn.rpartition(b".")[2]) % 3, "an append is there whole or not at all"


def _sizes(held: list[Logged]) -> dict[bytes, int]:
    sizes: dict[bytes, int] = {}
    for _, command in held:
        turn = command.rpartition(b".")[0]
        sizes[turn] = sizes.get(turn, 0) + 1
    return sizes


async def test_acked_commands_survive_the_kill_of_the_process_that_appends(tmp_path: Path) -> None:
    chance = random.Random(7)
    acked: list[Logged] = []
    for life in range(4):
        writer = await Writer.start("sqlite", tmp_path / "log.db", f"life{life}")
        await writer.acks(chance.randrange(5, 60))
        await asyncio.sleep(chance.random() * 0.02)
        await writer.kill()
        acked += writer.acked
    log = await SqliteLog.open(tmp_path / "log.db")
    _check(await _everything(log), acked)
    await log.close()


async def test_acked_commands_survive_kills_of_clients_and_owner(tmp_path: Path) -> None:
    chance = random.Random(11)
    writers = []
    owner = await start_owner(tmp_path / "log.db", tmp_path / "s")
    try:
        for life in range(4):
            started = [await Writer.start("socket", tmp_path / "s", f"{life}-{name}") for name in "ab"]
            writers += started
            await asyncio.gather(*(writer.acks(chance.randrange(5, 40)) for writer in writers[-3:]))
            await started[0].kill()
            await _kill(owner)
            owner = await start_owner(tmp_path / "log.db", tmp_path / "s")
            await started[1].acks(5)  # it has reconnected by itself
            if len(writers) > 3:
                await writers[-3].kill()
        for writer in writers:
            await writer.kill()
        log = await SocketLog.open(tmp_path / "s")
        _check(await _everything(log), [each for writer in writers for each in writer.acked])
        await log.close()
    finally:
        for writer in writers:
            await writer.kill()
        await _kill(owner)


async def test_a_stopped_client_does_not_stop_the_others_L15(tmp_path: Path) -> None:
    async with an_owner(tmp_path):
        stopped = await Writer.start("socket", tmp_path / "s", "stopped")
        try:
            await stopped.acks(5)
            stopped.process.send_signal(signal.SIGSTOP)
            log = await SocketLog.open(tmp_path / "s")
            loop = asyncio.get_running_loop()
            slowest = 0.0
            after = 1
            for turn in range(300):
                begin = loop.time()
                after = (await log.append([b"going.%d" % turn], after)).first
                slowest = max(slowest, loop.time() - begin)
            assert slowest < 5
            stopped.process.send_signal(signal.SIGCONT)
            await stopped.acks(5)
            await log.close()
        finally:
            await stopped.kill()


@contextlib.asynccontextmanager
async def a_greedy_client(path: Path) -> AsyncIterator[socket.socket]:
    """Asks for a large command two thousand times and reads no answer."""
    loop = asyncio.get_running_loop()
    requests = [wire.frame(wire.FrameKind.READ, number, wire.encode_read(1, 1)) for number in range(1, 2000)]
    with socket.socket(socket.AF_UNIX) as greedy:
        greedy.setblocking(False)
        await loop.sock_connect(greedy, str(path))
        hello = wire.frame(wire.FrameKind.HELLO, 0, wire.encode_hello())
        sending = asyncio.create_task(loop.sock_sendall(greedy, hello + b"".join(requests)))
        yield greedy
        sending.cancel()
        await asyncio.wait([sending])


async def test_a_client_that_never_reads_its_answers_holds_bounded_memory_and_nobody_up_L15(tmp_path: Path) -> None:
    owner = await Owner.open(tmp_path / "log.db", tmp_path / "s")
    log = await SocketLog.open(tmp_path / "s")
    after = (await log.append([b"x" * 1_000_000], 0)).first
    async with a_greedy_client(tmp_path / "s"):
        for _ in range(100):
            after = (await log.append([b"y"], after)).first
        unsent = [client._transport.get_write_buffer_size() for client in owner.clients if client._transport]
        assert len(unsent) == 2
        assert 500_000 < max(unsent) <= 66_000_000, "no more requests are taken in than may be in flight"
    await log.close()
    await owner.close()


async def test_a_client_with_too_many_unfetched_answers_is_cut_off_L15(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakestream.metadata.stores.owner.MAX_UNSENT_BYTES", 3_000_000)
    owner = await Owner.open(tmp_path / "log.db", tmp_path / "s")
    log = await SocketLog.open(tmp_path / "s")
    after = (await log.append([b"x" * 1_000_000], 0)).first
    async with a_greedy_client(tmp_path / "s"), asyncio.timeout(10):
        while len(owner.clients) != 1:
            after = (await log.append([b"y"], after)).first
    assert (await log.append([b"z"], after)).first == after + 1
    await log.close()
    await owner.close()


async def test_an_append_whose_answer_is_lost_is_unknown_and_one_not_sent_is_retry(tmp_path: Path) -> None:
    async with an_owner(tmp_path) as owner:
        log = await SocketLog.open(tmp_path / "s", connect_timeout_s=0.2)
        await log.append([b"one"], 0)
        owner.send_signal(signal.SIGSTOP)
        lost = asyncio.create_task(log.append([b"two"], 1))
        reading = asyncio.create_task(log.read(0, 10))
        await asyncio.sleep(0.05)
        await _kill(owner)
        with pytest.raises(Unknown):
            await lost
        with pytest.raises(Retry):
            await reading
        with pytest.raises(Retry):
            await log.append([b"three"], 1)
        await log.close()


async def test_an_owner_that_does_not_answer_is_given_up_after_a_while(tmp_path: Path) -> None:
    async with an_owner(tmp_path) as owner:
        log = await SocketLog.open(tmp_path / "s", answer_timeout_s=0.2)
        owner.send_signal(signal.SIGSTOP)
        with pytest.raises(Unknown):
            await log.append([b"one"], 0)
        owner.send_signal(signal.SIGCONT)
        held = await _everything(log)
        assert held in ([], [(1, b"one")])
        await log.close()


async def test_clients_find_a_restarted_owner_by_themselves(tmp_path: Path) -> None:
    async with an_owner(tmp_path) as owner:
        log = await SocketLog.open(tmp_path / "s")
        await log.append([b"one"], 0)
        owner.terminate()
        assert await owner.wait() == 0
        assert not (tmp_path / "s").exists()
        async with an_owner(tmp_path):
            assert (await log.append([b"two"], 1)).tail == [(1, b"one"), (2, b"two")]
            await log.close()


async def test_a_client_is_woken_by_the_owner_when_another_appends(tmp_path: Path) -> None:
    async with an_owner(tmp_path):
        log, other = [await SocketLog.open(tmp_path / "s") for _ in range(2)]
        waiting = asyncio.create_task(log.wait(0, 30))
        await asyncio.sleep(0.02)
        await other.append([b"one"], 0)
        async with asyncio.timeout(5):
            await waiting
        await log.close()
        await other.close()


async def test_the_socket_is_private_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    async with an_owner(tmp_path) as first:
        assert stat.S_IMODE(os.stat(tmp_path / "s").st_mode) == 0o600
        await _kill(first)
        assert (tmp_path / "s").exists()
        async with an_owner(tmp_path):
            await (await SocketLog.open(tmp_path / "s")).close()


async def test_an_owner_does_not_take_the_socket_of_another_that_lives(tmp_path: Path) -> None:
    async with an_owner(tmp_path):
        with pytest.raises(Halted, match="alive"):
            await Owner.open(tmp_path / "other.db", tmp_path / "s")


async def test_a_second_owner_of_the_file_is_told_who_holds_it(tmp_path: Path) -> None:
    async with an_owner(tmp_path) as owner:
        with pytest.raises(Retry, match=f"process {owner.pid}"):
            await SqliteLog.open(tmp_path / "log.db")


async def test_bad_bytes_on_the_socket_close_that_connection_only(tmp_path: Path) -> None:
    async with an_owner(tmp_path):
        log = await SocketLog.open(tmp_path / "s")
        chance = random.Random(3)
        greeting = wire.frame(wire.FrameKind.HELLO, 0, wire.encode_hello())
        for bad in (
            chance.randbytes(1000),
            b"\xff\xff\xff\xff",
            b"GET / HTTP/1.1\r\n\r\n",
            wire.frame(wire.FrameKind.READ, 1, wire.encode_read(0, 1)),
            wire.frame(wire.FrameKind.HELLO, 0, b"LKCL\x63\x00" + bytes(8)),
            greeting + b"\x02\x00\x00\x00\x01",
        ):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            writer.write(bad)
            async with asyncio.timeout(5):
                while await reader.read(65536):
                    pass
            writer.close()
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(greeting + wire.frame(wire.FrameKind.APPEND, 7, b"\x00" * 8 + b"\xff" * 4))
        answers = wire.Frames(wire.MAX_ANSWER_BYTES)
        async with asyncio.timeout(5):
            while not (frame := answers.next()) or frame.kind == wire.FrameKind.WELCOME:
                if frame is None:
                    answers.feed(await reader.read(65536))
        assert (frame.kind, frame.request) == (wire.FrameKind.FAILED, 7)
        writer.close()
        assert (await log.append([b"fine"], 0)).first == 1
        await log.close()


async def test_a_failed_write_is_unknown_and_the_log_goes_on_without_a_gap(tmp_path: Path) -> None:
    """The file may not grow: the commit fails half way. Once it may, the log is whole and goes on."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import asyncio, resource, sys\n"
        "from lakestream.errors import Retry, Unknown\n"
        "from lakestream.metadata.stores.sqlite import SqliteLog\n"
        "async def main():\n"
        "    log = await SqliteLog.open(sys.argv[1])\n"
        "    await log.append([b'one'], 0)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))\n"
        "    try:\n"
        "        await log.append([bytes(1_000_000)], 1)\n"
        "    except (Retry, Unknown) as error:\n"
        "        print(type(error).__name__, error)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "    print(await log.read(0, 10), (await log.append([b'two'], 1)).tail)\n"
        "    await log.close()\n"
        "asyncio.run(main())",
        str(tmp_path / "log.db"),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await child.communicate()
    failed, held = out.decode().splitlines()
    assert failed.startswith("Unknown")
    assert held == "[(1, b'one')] [(1, b'one'), (2, b'two')]"

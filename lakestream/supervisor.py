"""`lakestream serve`: broker processes, the owner of a shared SQLite log, and the pipeline, started and kept running.

The contract with a broker's process: it is started as `... broker --id I --ready-fd N`, with its settings as JSON in
the environment (settings.CHILD_VARIABLE). When it serves, it announces itself on descriptor N (readiness.py). SIGTERM
asks it to drain and stop. It exits with GIVE_UP if starting it again cannot help, and with NO_STORE if it cannot use
its store: that ends a start, but not a cluster that has served. The pipeline has the same contract, but no broker
depends on it: it starts when the brokers serve, is started again for ever, and if it gives up, tables wait. This module
imports nothing heavy: the time to the ready line counts.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from lakestream import settings as config
from lakestream.assembly.command_log import log_file, log_sharing
from lakestream.process.locked_file import LockedFile
from lakestream.process.ports import choose_ports
from lakestream.process.readiness import GIVE_UP, NO_STORE, Announcement, parse
from lakestream.process.temporary_folders import TemporaryFolder
from lakestream.settings import Settings

log = logging.getLogger("lakestream.supervisor")

QUICK_DEATH_S = 1.0
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.2, 5.0
FIRST_STARTS_MAX = 4
OWNER_STOP_S = 3.0
PIPELINE_BACKOFF_MAX_S = 60.0
PIPELINE_STOP_S = 5.0
"""How long Spark may take to end after the last round."""
PIPELINE_NEEDS = ("pyarrow", "pyspark")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Programs:
    """The program of each part; tests use their own."""

    broker: tuple[str, ...] = (sys.executable, "-m", "lakestream.cli.main", "broker")
    owner: tuple[str, ...] = (sys.executable, "-m", "lakestream.metadata.stores.owner")
    pipeline: tuple[str, ...] = (sys.executable, "-m", "lakestream.cli.main", "pipeline")


def serve(settings: Settings, programs: Programs | None = None) -> int:
    """Run until a signal; returns the exit code. Raises SettingsError if the settings do not allow a start."""
    with contextlib.ExitStack() as held:
        held.enter_context(locked(settings))
        each = for_each_broker(settings)
        sockets = TemporaryFolder("serve")
        held.callback(sockets.remove)
        return asyncio.run(_Supervisor(each, sockets.path, programs or Programs()).run())


@contextlib.contextmanager
def locked(settings: Settings) -> Iterator[None]:
    """Lock the data folder and the metadata file against other processes that serve or repair."""
    folder, database = config.data_folder(settings), log_file(settings)
    with contextlib.ExitStack() as held:
        if folder is not None:
            held.enter_context(LockedFile(folder / ".lakestream.lock", f"the data folder {folder}"))
        if database is not None and (folder is None or database.parent.absolute() != folder.absolute()):
            held.enter_context(LockedFile(Path(f"{database}.serve"), f"the metadata file {database}"))
        yield


def for_each_broker(settings: Settings) -> list[Settings]:
    """Each broker's own settings: its ports chosen, its advertised address complete."""
    count = settings.brokers
    kafka, http = choose_ports(
        ("--kafka-port", settings.kafka_host, settings.kafka_port),
        ("--http-port", settings.http_host, settings.http_port),
        count=count,
    )
    wildcard = settings.kafka_host in ("0.0.0.0", "::", "")
    host = settings.advertised_host or (socket.gethostname() if wildcard else settings.kafka_host)
    return [
        replace(
            settings,
            kafka_port=kafka[i],
            http_port=http[i],
            advertised_host=host,
            advertised_port=settings.advertised_port + i if settings.advertised_port else kafka[i],
        )
        for i in range(count)
    ]


class _Supervisor:
    def __init__(self, each: Sequence[Settings], sockets: Path, programs: Programs) -> None:
        self._each = each
        self._programs = programs
        self._owner: _Child | None = None
        self._pipeline: _Child | None = None
        self._brokers: list[_Child] = []
        self._signals = 0
        self._asked_to_stop = asyncio.Event()
        socket_path = str(sockets / "log.sock")
        self._sharing = log_sharing(each[0], socket_path)
        if (file := self._sharing.owned_file) is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            argv = (*programs.owner, str(file.absolute()), socket_path)
            self._owner = _Child("log owner", argv, {}, socket_path=socket_path)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGCHLD, self._on_child)
        children: set[asyncio.Task[int]] = set()
        landing: list[asyncio.Task[int]] = []
        code = 0
        try:
            if self._owner is not None:
                children.add(asyncio.create_task(self._owner.run()))
                code = await self._until(self._owner.serves, children)
            self._brokers = [self._broker(i, settings) for i, settings in enumerate(self._each)]
            if not code and not self._asked_to_stop.is_set():
                children |= {asyncio.create_task(child.run()) for child in self._brokers}
                code = await self._until(self._all_serve, children)
            if not code and not self._asked_to_stop.is_set():
                self._say_ready()
                landing = self._start_pipeline()
                code = await self._while_some_serve(children)
        finally:
            await self._stop()
            await asyncio.gather(*children, *landing)
        return code

    def _broker(self, number: int, settings: Settings) -> "_Child":
        argv = (*self._programs.broker, "--id", str(number))
        if self._sharing.broker_socket:
            argv += ("--log-socket", self._sharing.broker_socket)
        return _Child(f"broker {number}", argv, _handed_down(settings, self._sharing.broker_address))

    def _start_pipeline(self) -> list[asyncio.Task[int]]:
        """Start the pipeline beside the brokers, which serve without it as well."""
        if not self._each[0].tables:
            return []
        missing = [name for name in PIPELINE_NEEDS if find_spec(name) is None]
        if missing:
            log.error("tables wait: %s not installed; run `pip install lakestream` again", " and ".join(missing))
            return []
        environment = _handed_down(self._each[0], self._sharing.pipeline_address)
        self._pipeline = _Child("pipeline", self._programs.pipeline, environment, vital=False)
        return [asyncio.create_task(self._pipeline.run())]

    async def _all_serve(self) -> None:
        await asyncio.gather(*(child.serves() for child in self._brokers))

    async def _until(self, wanted: Callable[[], Awaitable[object]], children: set[asyncio.Task[int]]) -> int:
        """Wait for `wanted` or a signal: 0. A child that gives up ends it all: its code."""
        waiting = [asyncio.ensure_future(wanted()), asyncio.ensure_future(self._asked_to_stop.wait())]
        await asyncio.wait([*waiting, *children], return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        return max((task.result() for task in children if task.done()), default=0)

    async def _while_some_serve(self, children: set[asyncio.Task[int]]) -> int:
        """Until a signal: 0. A broker that gives up leaves the others alone; the last one, or the owner, ends it."""
        while any(not child.gave_up for child in self._brokers) and not (self._owner and self._owner.gave_up):
            stopping = asyncio.ensure_future(self._asked_to_stop.wait())
            left = [task for task in children if not task.done()]
            await asyncio.wait([stopping, *left], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if self._asked_to_stop.is_set():
                return 0
        return max(task.result() for task in children if task.done())

    def _say_ready(self) -> None:
        said = [child.announcement for child in self._brokers if child.announcement is not None]
        kafka, http = ",".join(one.kafka for one in said), ",".join(one.http for one in said)
        with contextlib.suppress(BrokenPipeError):
            print(f"ready kafka={kafka} http={http}", flush=True)
        first, page = said[0].kafka, said[0].http
        command = "lakestream" if shutil.which("lakestream") else _how_called()
        where = "" if first == config.DEFAULT_BOOTSTRAP else f" --bootstrap {first}"
        tables = (
            f"#       {command} sql 'select text(value) from greetings'{where}\n"
            f"#       {command} tables{where}\n"
            f"#       tables for all engines: Iceberg REST catalog at http://{page}/iceberg\n"
        )
        print(
            f"# try:  echo hello | {command} produce greetings{where}\n"
            f"#       {command} consume greetings --from-beginning{where}\n"
            f"{tables if self._each[0].tables else ''}"
            f"# stop with Ctrl-C",
            file=sys.stderr,
            flush=True,
        )

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals == 1:
            log.info("stopping")
            self._asked_to_stop.set()
        else:
            log.warning("killing all children at once")
            for child in self._children():
                child.signal(signal.SIGKILL)

    def _on_child(self) -> None:
        for child in self._children():
            child.reap()

    def _children(self) -> list["_Child"]:
        return self._brokers + [child for child in (self._pipeline, self._owner) if child is not None]

    async def _stop(self) -> None:
        """Brokers and the pipeline drain first. The owner of the log stops last, since draining needs it."""
        drain_s = self._each[0].drain_ms / 1000
        landing = [self._pipeline.stop(drain_s + PIPELINE_STOP_S)] if self._pipeline is not None else []
        if self._sharing.broker_socket:
            await asyncio.gather(*landing)
            landing = []
        await asyncio.gather(*(child.stop(drain_s) for child in self._brokers), *landing)
        if self._owner is not None:
            await self._owner.stop(OWNER_STOP_S)


def _handed_down(settings: Settings, log_address: str) -> dict[str, str]:
    """The environment in which a child finds its settings, with the address at which it reaches the command log."""
    return {config.CHILD_VARIABLE: config.to_json(replace(settings, metadata=log_address))}


def _how_called() -> str:
    """The command line that started this program, for the hints to the user."""
    script = sys.argv[0]
    return f"{sys.executable} -m lakestream" if script.endswith("__main__.py") else script


class _Child:
    """One process that is started again whenever it dies, until it is stopped or gives up.

    A child that is not `vital` may die as often as it likes: it is started again, more and more seldom.
    """

    def __init__(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str], socket_path: str = "", vital: bool = True
    ) -> None:
        self.name = name
        self.announcement: Announcement | None = None
        self.gave_up = False
        self._argv = argv
        self._environment = {**os.environ, **environment}
        self._socket_path = socket_path
        self._vital = vital
        self._backoff_max_s = BACKOFF_MAX_S if vital else PIPELINE_BACKOFF_MAX_S
        self._process: subprocess.Popen[bytes] | None = None
        self._served = asyncio.Event()
        self._exited = asyncio.Event()
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """0 after `stop`; otherwise the reason to give up, as an exit code."""
        loop = asyncio.get_running_loop()
        quick_deaths = 0
        while not self._stopping.is_set():
            serving = await self._start()
            since = loop.time()
            await self._exited.wait()
            assert self._process is not None
            code = self._process.returncode
            if self._stopping.is_set():
                break
            quick = not serving or loop.time() - since < QUICK_DEATH_S
            quick_deaths = quick_deaths + 1 if quick else 0
            enough = quick_deaths >= FIRST_STARTS_MAX or code == NO_STORE
            never_served = self._vital and not self._served.is_set() and enough
            if code == GIVE_UP or never_served:
                told = "gave up: it does not start" if self._vital else "gave up: tables wait, brokers serve on"
                log.error(told, extra={"child": self.name, "code": code})
                self.gave_up = True
                return 1
            delay_s = min(BACKOFF_FIRST_S * 2 ** (quick_deaths - 2), self._backoff_max_s) if quick_deaths > 1 else 0.0
            log.warning("died, starting it again", extra={"child": self.name, "code": code, "delay_s": delay_s})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s or 0.001)
        return 0

    async def serves(self) -> None:
        """Return when the child serves for the first time."""
        await self._served.wait()

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
        self.reap()

    def reap(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self._exited.set()

    async def stop(self, limit_s: float) -> None:
        self._stopping.set()
        if self._process is None:
            return
        self.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._exited.wait(), limit_s)
        except TimeoutError:
            log.warning("did not stop in time, killing it", extra={"child": self.name, "limit_s": limit_s})
            self.signal(signal.SIGKILL)
            await self._exited.wait()

    async def _start(self) -> bool:
        """Whether the new process came to serve; False if it died before."""
        self._exited.clear()
        serving = await (self._start_with_socket() if self._socket_path else self._start_with_pipe())
        if serving:
            self._served.set()
            log.info("serves", extra={"child": self.name, "pid": self._process.pid if self._process else 0})
        return serving

    async def _start_with_pipe(self) -> bool:
        reading, writing = os.pipe()
        try:
            self._process = self._spawn((*self._argv, "--ready-fd", str(writing)), (writing,))
        finally:
            os.close(writing)
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb", buffering=0)
        )
        try:
            line = await stream.readline()
        finally:
            transport.close()
        if line:
            self.announcement = parse(line)
        return bool(line)

    async def _start_with_socket(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._socket_path)
        self._process = self._spawn(self._argv, ())
        while not self._exited.is_set():
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_unix_connection(self._socket_path)
                writer.close()
                return True
            await asyncio.sleep(0.01)
        return False

    def _spawn(self, argv: Sequence[str], fds: Sequence[int]) -> subprocess.Popen[bytes]:
        """A session of its own, so that Ctrl-C reaches the supervisor only; its output goes to our standard error."""
        output = subprocess.DEVNULL if self._socket_path else 2
        return subprocess.Popen(
            argv, env=self._environment, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=output, start_new_session=True,
            preexec_fn=_tie_to_parent(os.getpid()),
        )  # fmt: skip


def _tie_to_parent(parent: int) -> Callable[[], None]:
    """The first step of a child: ask the kernel to kill it when the supervisor dies, however it dies."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def tie() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)

    return tie

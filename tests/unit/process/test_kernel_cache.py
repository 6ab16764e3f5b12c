"""Compiled loops find a place for users who may write nowhere else, and never in a folder of somebody else's."""

import os
import stat
from pathlib import Path

import pytest

from lakestream.process import kernel_cache
from lakestream.process.kernel_cache import VARIABLE, choose, may_write, own_folder

NOWHERE = Path("/dev/null/x")


def test_who_may_write_nowhere_gets_a_folder_of_his_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "_usual", lambda _: [NOWHERE, Path("~/.cache")])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environ: dict[str, str] = {}
    choose(environ)
    folder = Path(environ[VARIABLE])
    assert folder.parent == tmp_path and stat.S_IMODE(folder.stat().st_mode) == 0o700
    again: dict[str, str] = {}
    choose(again)
    assert again == environ


def test_who_has_a_place_already_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "_usual", lambda _: [NOWHERE, tmp_path / "to" / "be" / "made"])
    environ: dict[str, str] = {}
    choose(environ)
    chosen = {VARIABLE: "/chosen"}
    monkeypatch.setattr(kernel_cache, "_usual", lambda _: [NOWHERE])
    choose(chosen)
    assert (environ, chosen) == ({}, {VARIABLE: "/chosen"})
    assert not may_write(NOWHERE)


@pytest.mark.parametrize("kind", ["open to others", "a link", "somebody else's"])
def test_a_folder_that_others_could_have_filled_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "a link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        (tmp_path / f"lakestream-kernels-{os.getuid()}").symlink_to(tmp_path / "theirs")
        usual = tmp_path / f"lakestream-kernels-{os.getuid()}"
    else:
        usual = own_folder(tmp_path)
    if kind == "open to others":
        usual.chmod(0o770)
    if kind == "somebody else's":
        other = os.getuid() + 1
        usual = usual.rename(tmp_path / f"lakestream-kernels-{other}")
        monkeypatch.setattr(os, "getuid", lambda: other)
    found = own_folder(tmp_path)
    assert found != usual and stat.S_IMODE(found.stat().st_mode) == 0o700

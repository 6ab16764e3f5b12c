"""The audit of pinned versions: findings fail, silence is told as silence; and the bill of materials names all pins."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.places import ROOT


@pytest.fixture
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_audit", ROOT / ".ci" / "audit.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


CLEAN = {"name": "a", "version": "1", "vulns": []}
HOLE = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"], "aliases": []}]}
UNFIXED = {"name": "c", "version": "4", "vulns": [{"id": "PYSEC-2", "fix_versions": []}]}
UNKNOWN = {"name": "d", "skip_reason": "Dependency not found"}


def report(*packages: object) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


def test_a_finding_is_a_reason_to_fail_with_the_version_that_mends_it(audit: ModuleType) -> None:
    found = audit.read_report(report(CLEAN, HOLE, UNFIXED, UNKNOWN))
    assert (found.audited, found.skipped) == (3, 1)
    assert audit.judge(found, {}) == ["b 2: PYSEC-1, fixed in 3", "c 4: PYSEC-2, fixed in no version"]
    assert audit.judge(audit.read_report(report(CLEAN, UNKNOWN)), {}) == []


def test_what_is_ignored_is_named_and_only_as_long_as_it_is_a_finding(audit: ModuleType) -> None:
    found = audit.read_report(report(HOLE))
    assert audit.judge(found, {"PYSEC-1": "we do not call it"}) == []
    assert audit.judge(found, {"PYSEC-1": "", "PYSEC-9": ""}) == ["PYSEC-9 is ignored, and is no finding any more"]


@pytest.mark.parametrize("said", ["", "Traceback", "{}", "[]", report(), report(UNKNOWN, UNKNOWN)])
def test_a_service_that_knows_no_package_has_audited_nothing(audit: ModuleType, said: str) -> None:
    assert audit.read_report(said) is None


def test_silence_is_told_and_does_not_fail(audit: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    audit.ask = lambda service, file: None
    assert audit.main("constraints.txt") == 0
    assert "NOTHING WAS AUDITED" in capsys.readouterr().out
    audit.ask = lambda service, file: audit.read_report(report(HOLE)) if service == "osv" else None
    assert audit.main("constraints.txt") == 1
    assert "b 2: PYSEC-1" in capsys.readouterr().out


def test_the_bill_of_materials_has_every_pin_of_the_product_with_its_hashes(tmp_path: Path) -> None:
    recipe = (ROOT / "Makefile").read_text()
    assert re.search(r"cyclonedx_py requirements .*constraints\.txt", recipe)
    made = tmp_path / "sbom.json"
    asked = [sys.executable, "-m", "cyclonedx_py", "requirements", "--pyproject", "pyproject.toml"]
    asked += ["--output-reproducible", "-o", str(made), "constraints.txt"]
    subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, timeout=120)
    bill = json.loads(made.read_text())
    pins = (ROOT / "constraints.txt").read_text()
    pinned = dict(re.findall(r"^([a-z0-9-]+)(?:\[[^\]]*\])?==(\S+)", pins, re.MULTILINE))
    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["name"] == "lakestream"
    assert {one["name"]: one["version"] for one in bill["components"]} == pinned
    assert all(one["externalReferences"][0]["hashes"] for one in bill["components"])

"""Iceberg's own compatibility kit for REST catalogs: the tests of its reference implementation, against ours."""

import subprocess
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

from tests.compatibility.clients.java import FLAGS, TOOLS, compiled
from tests.support.catalog_server import CatalogServer
from tests.support.places import ROOT

SOURCES: Final = Path(__file__).resolve().parent / "rest_kit"
CACHE: Final = ROOT / "build" / "compatibility-rest-kit"
PAGE: Final = ROOT / "docs" / "CATALOG.md"
LIMIT_S: Final = 900.0
PASSED_AT_LEAST: Final = 148
CLASSES: Final = ("org.apache.iceberg.rest.CatalogKit", "org.apache.iceberg.rest.RESTCompatibilityKitViewCatalogTests")
LEFT_OUT: Final = frozenset((
    "createAndDropEmptyNamespace", "listNamespacesWithEmptyNamespace", "listTablesInEmptyNamespace",
    "listViewsInEmptyNamespace", "namespacePropertiesOnEmptyNamespace", "createTableInUniqueLocation",
    "testNamespaceWithSlash", "testTableNameWithSlash",
))  # fmt: skip
"""What the kit skips with our settings. The page of the catalog says why, of each."""


@pytest.mark.long
@pytest.mark.needs(*TOOLS)
def test_icebergs_compatibility_kit_passes_but_for_what_the_page_names(tmp_path: Path) -> None:
    elsewhere, report = tmp_path / "elsewhere", tmp_path / "report"
    elsewhere.mkdir()
    with CatalogServer(tmp_path / "tables", allowed=(f"file://{elsewhere}",)) as server:
        done = run_kit(server.uri, elsewhere, report)
    outcomes = read_outcomes(report / "TEST-junit-jupiter.xml")
    assert [name for name, outcome in outcomes if outcome == "failed"] == [], done.stdout[-5000:]
    assert {name for name, outcome in outcomes if outcome == "skipped"} == LEFT_OUT
    assert sum(outcome == "passed" for _, outcome in outcomes) >= PASSED_AT_LEAST


def test_the_page_says_why_tests_of_the_kit_are_left_out() -> None:
    page = PAGE.read_text()
    assert [name for name in sorted(LEFT_OUT) if f"`{name}`" not in page] == []


def run_kit(uri: str, elsewhere: Path, report: Path) -> subprocess.CompletedProcess[str]:
    properties = {
        "uri": uri, "rck.local": "false", "rck.purge-test-namespaces": "true", "rck.requires-namespace-create": "true",
        "rck.supports-serverside-retry": "true", "rck.supports-names-with-dot": "true",
        "kit.locations": f"file:{elsewhere}", "java.io.tmpdir": str(elsewhere),
    }  # fmt: skip
    return subprocess.run(
        ["java", *FLAGS, *(f"-D{name}={value}" for name, value in properties.items()), "-cp", compiled(SOURCES, CACHE),
         "org.junit.platform.console.ConsoleLauncher", "execute", *(f"--select-class={name}" for name in CLASSES),
         f"--reports-dir={report}", "--details=tree", "--disable-banner"],
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip


def read_outcomes(report: Path) -> list[tuple[str, str]]:
    """Each test's name and whether it passed, failed or was skipped."""
    found = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        failed = case.find("failure") is not None or case.find("error") is not None
        outcome = "failed" if failed else "skipped" if case.find("skipped") is not None else "passed"
        found.append((case.get("name", "").partition("(")[0], outcome))
    return found

"""Asks whether a version that we pin has a known hole: `make audit`.

The exit code is 1 for a finding, and 0 if there is none or if nobody can be asked: services of advisories are not
reachable from everywhere, and a mirror of packages knows nothing of holes. Then the output says that nothing was
audited, where pip-audit alone would say that it found no vulnerabilities.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SERVICES = ("pypi", "osv")
"""Asked in this order, until one knows our packages."""
ANSWER_S = 600

# Advisories that do not concern us, by id -> why. One that the service does not name any more is an error.
IGNORED: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Finding:
    """A hole in a package that we pin."""

    package: str
    version: str
    advisory: str
    fixed_in: str


@dataclass(frozen=True, slots=True)
class Audit:
    """What a service knows of our packages."""

    audited: int
    skipped: int
    findings: tuple[Finding, ...]


def read_report(text: str) -> Audit | None:
    """What pip-audit says as JSON; None if it says nothing, or nothing about any package."""
    try:
        packages = json.loads(text)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return None
    audited = [package for package in packages if "skip_reason" not in package]
    found = tuple(finding for package in audited for finding in _findings(package))
    return Audit(len(audited), len(packages) - len(audited), found) if audited else None


def _findings(package: Mapping[str, Any]) -> Iterator[Finding]:
    for hole in package["vulns"]:
        yield Finding(package["name"], package["version"], hole["id"], ", ".join(hole["fix_versions"]) or "no version")


def judge(audit: Audit, ignored: Mapping[str, str]) -> list[str]:
    """A line for each reason to fail."""
    known = {finding.advisory for finding in audit.findings}
    lines = [
        f"{one.package} {one.version}: {one.advisory}, fixed in {one.fixed_in}"
        for one in audit.findings
        if one.advisory not in ignored
    ]
    return lines + [f"{one} is ignored, and is no finding any more" for one in ignored if one not in known]


def ask(service: str, file: str) -> Audit | None:
    """None if the service cannot be asked."""
    command = [sys.executable, "-m", "pip_audit", "-r", file, "--disable-pip", "--no-deps", "--progress-spinner", "off"]
    try:
        done = subprocess.run(
            [*command, "-s", service, "-f", "json"], capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return read_report(done.stdout)


def main(file: str) -> int:
    for service in SERVICES:
        audit = ask(service, file)
        if audit is None:
            print(f"audit: the service {service} cannot be asked from here", flush=True)
            continue
        reasons = judge(audit, IGNORED)
        print(f"audit: {audit.audited} packages of {file} audited by {service}, {audit.skipped} unknown to it")
        print("\n".join(reasons) or "audit: no known holes")
        return 1 if reasons else 0
    print(f"audit: NOTHING WAS AUDITED of {file}, since no service of advisories can be reached")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""The rules of the house that no linter knows. A broken one names the file, the line and what to do."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT_MODULE_LINES_MAX = 450
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
PACKAGE_MODULES_MAX = 20
ATTRIBUTES_MAX = 25

# Where a rule would make the code worse: "path" or "path::function" -> why. An exception nobody needs is an error.
EXCEPTIONS: dict[str, str] = {}

VAGUE_NAMES = re.compile(r"(^|_)(utils?|commons?|helpers?|managers?|misc)(_|$)")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
REGISTRIES = re.compile(
    r"pypi\.org|pythonhosted\.org|repo1?\.maven(\.apache)?\.org|registry\.npmjs\.org|proxy\.golang\.org|deb\.debian\.org"
)
MACHINE_PATHS = re.compile(r"(?<![\w./:$}-])/(root|home|Users|work|mnt|opt)/[\w.]")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".sql", ".java", ".xml", ".js", ".json", ".html", ".css", ".sh", ".yml"}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def texts() -> Iterator[tuple[Path, str]]:
    """Every text file of the project: the top and the folders we write, never what was made or installed."""
    top = [path for path in ROOT.iterdir() if path.is_file()]
    below = [path for folder in ("lakestream", "tests", "bench", "docs", ".ci") for path in (ROOT / folder).rglob("*")]
    for path in sorted(top + below):
        in_build = {"target", "node_modules", "__pycache__", "results"} & set(path.relative_to(ROOT).parts)
        named = path.suffix in TEXT_SUFFIXES or path.name in ("Makefile", "NOTICE", ".gitignore", "run")
        if path.is_file() and named and not in_build:
            yield path, path.read_bytes().decode()


def name(path: Path, line: int = 0) -> str:
    return f"{path.relative_to(ROOT).as_posix()}{f':{line}' if line else ''}"


def lines_that_match(pattern: re.Pattern[str], *, apart_from: tuple[str, ...] = ()) -> list[str]:
    return [
        f"{name(path, number)}: {line.strip()}"
        for path, text in texts()
        if name(path) not in ("tests/test_tidy.py", *apart_from)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def long_functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield f"{name(path)}::{node.name}", length


def too_long() -> dict[str, int]:
    found = {}
    for path in sources("lakestream", "bench", "tests"):
        lines = len(path.read_bytes().splitlines())
        if lines > (PRODUCT_MODULE_LINES_MAX if name(path).startswith("lakestream/") else MODULE_LINES_MAX):
            found[name(path)] = lines
        found.update(long_functions(path))
    return found


def test_every_module_opens_with_a_docstring() -> None:
    modules = [path for path in sources("lakestream", "tests", "bench") if path.name != "__init__.py"]
    assert modules
    assert [name(path) for path in modules if not ast.get_docstring(ast.parse(path.read_bytes()))] == []


def test_every_init_file_is_empty() -> None:
    inits = [path for path in sources("lakestream", "tests", "bench") if path.name == "__init__.py"]
    assert [name(path) for path in inits if path.stat().st_size] == []


def test_every_package_has_its_init_file() -> None:
    folders = {path.parent for path in sources("lakestream")}
    assert [name(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_modules_and_functions_are_short() -> None:
    assert {place: lines for place, lines in too_long().items() if place not in EXCEPTIONS} == {}


def test_packages_are_small() -> None:
    modules = Counter(path.parent for path in sources("lakestream") if path.name != "__init__.py")
    assert {name(folder): count for folder, count in modules.items() if count > PACKAGE_MODULES_MAX} == {}


def classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    for path in sources("lakestream"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                yield path, node


def test_a_public_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path, node in classes():
        if not node.name.startswith("_"):
            places.setdefault(node.name, []).append(name(path, node.lineno))
    assert places
    assert {one: found for one, found in places.items() if len(found) > 1} == {}


def attributes(node: ast.ClassDef) -> set[str]:
    """The attributes that instances of a class have: those declared in its body, and those set on `self`."""
    fields = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
    declared = {target.id for target in fields if isinstance(target, ast.Name)}
    written = {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)
        if isinstance(one.value, ast.Name) and one.value.id == "self"
    }
    return declared | written


def test_classes_have_few_attributes() -> None:
    """Settings are values without behaviour: their table is as long as there are settings."""
    found = {f"{name(path)}::{node.name}": len(attributes(node)) for path, node in classes() if node.name != "Settings"}
    assert {place: count for place, count in found.items() if count > ATTRIBUTES_MAX} == {}


def test_every_exception_is_needed() -> None:
    assert set(EXCEPTIONS) - set(too_long()) == set()


def test_modules_have_telling_names() -> None:
    assert [name(path) for path in sources("lakestream", "bench", "tests") if VAGUE_NAMES.search(path.stem)] == []


def test_nothing_is_left_for_later() -> None:
    assert lines_that_match(UNFINISHED) == []


def test_no_file_names_a_registry() -> None:
    assert lines_that_match(REGISTRIES) == []


def test_no_file_names_a_path_of_one_machine() -> None:
    assert lines_that_match(MACHINE_PATHS) == []


CONSTRAINTS = ["constraints.txt", "constraints-dev.txt"]
CONSTRAINTS += [name(path) for path in sorted((ROOT / "tests" / "engines" / "environments").glob("*.txt"))]


@pytest.mark.parametrize("file", CONSTRAINTS)
def test_constraints_hold_names_versions_and_hashes_only(file: str) -> None:
    pinned = r"[a-z0-9-]+(\[[a-z0-9,-]+\])?==[\w.+]+ \\"
    allowed = re.compile(rf"|#[^/]*|{pinned}|    --hash=sha256:[0-9a-f]{{64}}( \\)?|    # via [^/]*")
    lines = (ROOT / file).read_text().splitlines()
    assert [line for line in lines if not allowed.fullmatch(line)] == []
    pins = "\n".join(lines).split("==")[1:]
    assert pins and all("--hash=" in pin for pin in pins)


def test_the_tests_run_on_the_versions_of_the_product() -> None:
    def pins(file: str) -> set[str]:
        return set(re.findall(r"^[a-z0-9-]+(\[[a-z0-9,-]+\])?==[\w.+]+", (ROOT / file).read_text(), re.MULTILINE))

    assert pins("constraints.txt") - pins("constraints-dev.txt") == set()


def test_text_files_have_unix_lines_and_end_with_one() -> None:
    wrong = [name(path) for path, text in texts() if "\r" in text or (text and not text.endswith("\n"))]
    assert wrong == []


def test_every_stored_format_has_a_golden_file() -> None:
    """A page in docs/formats names its files as `tests/golden/...`, and they are there."""
    for page in sorted((ROOT / "docs" / "formats").glob("*.md")):
        named = re.findall(r"tests/golden/[\w./-]*\w", page.read_text())
        assert named, f"{name(page)} names no golden file"
        assert [path for path in named if not (ROOT / path).exists()] == [], name(page)


def test_the_architecture_page_knows_every_folder() -> None:
    page = ROOT / "docs" / "ARCHITECTURE.md"
    if not page.exists():
        return
    text = page.read_text()
    folders = {path.parent for path in sources("lakestream")} - {ROOT / "lakestream"}
    assert [name(folder) for folder in sorted(folders) if f"{folder.name}/" not in text] == []


@pytest.mark.parametrize("file", ["README.md", "CHANGELOG.md", "LICENSE", "NOTICE", "docs/GLOSSARY.md", ".ci/run"])
def test_the_repository_has_what_a_reader_looks_for(file: str) -> None:
    assert (ROOT / file).stat().st_size > 0


def test_relative_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{name(path)}: {target}"
        for path, text in texts()
        if path.suffix == ".md"
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
        if not (path.parent / target).exists()
    ]
    assert broken == []


RULE = re.compile(r"(?<![A-Za-z0-9#])(?:(?<=_)|\b)([CLTclt][0-9]{1,2})(?=_|\b)")
RULE_AT_HOME = re.compile(r"^- \*\*([CLT][0-9]{1,2})\b(.*?)(?=^- \*\*|^#|\Z)", re.MULTILINE | re.DOTALL)


def rules() -> dict[str, str]:
    """Every rule of docs/RULES.md with its text."""
    return dict(RULE_AT_HOME.findall((ROOT / "docs" / "RULES.md").read_text()))


def test_every_rule_that_is_named_stands_in_the_rules() -> None:
    """In code, tests and pages a capital C, L or T with a number is a rule."""
    known = rules()
    lost = [
        f"{name(path, number)}: {rule}"
        for path, text in texts()
        if path.suffix in (".py", ".md") and name(path) != "tests/test_tidy.py"
        for number, line in enumerate(text.splitlines(), 1)
        for rule in re.findall(r"(?<![\w#\"'`/.-])([CLT][0-9]{1,2})(?![\w\"'`/-])", line)
        if rule not in known
    ]
    assert lost == []


def test_every_rule_is_named_by_a_test() -> None:
    tested = {rule.upper() for path in sources("tests") for rule in RULE.findall(path.read_text())}
    wanted = {rule for rule, text in rules().items() if "*(to come)*" not in text}
    assert wanted
    assert sorted(wanted - tested) == []


def test_every_make_target_in_the_pages_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = "\n".join(text for path, text in texts() if path.suffix == ".md")
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", pages, re.MULTILINE))
    assert named - targets == set()

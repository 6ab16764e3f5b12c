"""The command line as a person meets it: help, settings, errors that say what to do, exit codes."""

import json
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from lakestream.cli.config import markdown_table
from lakestream.cli.main import COMMANDS, cli
from lakestream.cli.output import print_table, shortened
from lakestream.cli.verify import _show
from lakestream.lake.verify.report import Report, TopicReport
from lakestream.settings import table
from tests.support.places import ROOT
from tests.support.serve_process import clean_environment


def run(*argv: str, cwd: Path, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lakestream.cli.main", *argv], cwd=cwd, input=stdin, capture_output=True, text=True,
        env={**clean_environment(), **environ}, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(cli, [command, "--help"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"Usage: cli {command}")


def test_the_package_runs_as_a_module_where_its_script_is_not_on_the_path(tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "lakestream", "serve", "--brokers", "0"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "error: --brokers: must be between 1 and 1000, not 0\n")


def test_a_column_is_on_the_right_if_it_is_all_numbers_and_users_names_stay_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("what", "Rows"), [("a long name", 5), ("b", None)], as_named=True)
    print_table(("what", "value"), [("a", 5), ("b", "a long text")])
    assert capsys.readouterr().out.split("\n") == [
        "what         Rows", "a long name     5", "b               -", "WHAT  VALUE", "a     5", "b     a long text", ""
    ]  # fmt: skip


def test_help_lists_all_commands_without_importing_what_they_need(tmp_path: Path) -> None:
    seen = "import sys; from lakestream.cli.main import cli; cli(['--help'], standalone_mode=False); "
    seen += "print([m for m in ('asyncio', 'numba', 'numpy', 'rich', 'obstore', 'uvicorn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", seen], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.rstrip().endswith("[]"), done.stdout + done.stderr
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


def test_serving_imports_nothing_heavy_into_the_supervisor() -> None:
    seen = "import sys, lakestream.cli.serve; "
    seen += "print([m for m in ('numba', 'numpy', 'rich', 'obstore', 'uvicorn', 'starlette') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", seen], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_serve_has_a_flag_for_every_setting() -> None:
    text = CliRunner().invoke(cli, ["serve", "--help"]).output
    assert all(re.search(rf"{row.flag}\b", text) for row in table().values())


def test_config_lists_every_setting_with_its_origin(tmp_path: Path) -> None:
    (tmp_path / "lakestream.toml").write_text("num_partitions = 5\n")
    done = run("config", "--json", "--kafka-port", "7", cwd=tmp_path, LAKESTREAM_HTTP_PORT="8")
    listed = {row["name"]: row for row in json.loads(done.stdout)}
    assert list(listed) == list(table())
    assert [listed[name]["value"] for name in ("kafka_port", "http_port", "num_partitions")] == [7, 8, 5]
    assert listed["num_partitions"]["origin"] == "file lakestream.toml"
    plain = run("config", cwd=tmp_path, LAKESTREAM_TYPO="1")
    assert re.search(r"^num_partitions +5 +file lakestream\.toml", plain.stdout, re.MULTILINE)
    assert "LAKESTREAM_TYPO names no setting" in plain.stderr


def test_the_settings_in_the_documentation_are_those_of_the_code() -> None:
    assert markdown_table() in (ROOT / "docs" / "OPERATIONS.md").read_text()


def test_a_wrong_setting_ends_with_code_2_and_one_line(tmp_path: Path) -> None:
    done = run("serve", "--kafka-port", "99999", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --kafka-port: must be between 0 and 65535, not 99999\n"


@pytest.mark.parametrize("argv", [["config"], ["config", "--json"], ["sql", "--http", "127.0.0.1:1", "select 1"]])
def test_output_that_finds_no_room_is_one_line(tmp_path: Path, argv: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lakestream.cli.main", *argv], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE,
            text=True, env=clean_environment(), timeout=60,
        )  # fmt: skip
    told = "error: cannot write the output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)


@pytest.mark.parametrize(
    "command", ["topics list", "brokers", "groups list", "consume t", "produce t", "metadata show"]
)
def test_without_a_broker_the_error_says_what_to_do(tmp_path: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        nobody = f"127.0.0.1:{probe.getsockname()[1]}"
    done = run(*command.split(), "--bootstrap", nobody, cwd=tmp_path, stdin="x\n")
    assert (done.returncode, done.stdout) == (1, "")
    told = f"error: cannot reach a broker at {nobody}: start one with `lakestream serve`, or give its address"
    assert done.stderr.startswith(told)
    assert "--bootstrap" in done.stderr and "Traceback" not in done.stderr


def test_a_query_to_a_port_that_speaks_no_http_asks_whether_it_is_the_right_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        place = f"127.0.0.1:{other.getsockname()[1]}"

        def hang_up() -> None:
            for _ in range(2):
                connection, _ = other.accept()
                connection.recv(1)
                connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        done = run("sql", "--http", place, "select * from orders", cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith(f"error: cannot read http://{place}/healthz: ")
    assert done.stderr.endswith("; is that a broker's HTTP port?\n")


@pytest.mark.parametrize("command", ["tables list", "tables optimize t", "metadata show", "sql select"])
def test_an_http_address_that_is_none_is_a_wrong_command(tmp_path: Path, command: str) -> None:
    done = run(*command.split(), "--http", "127.0.0.1:abc", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "error: --http: expected HOST:PORT, not '127.0.0.1:abc'\n")


def test_the_bootstrap_address_may_come_from_the_environment(tmp_path: Path) -> None:
    done = run("brokers", cwd=tmp_path, LAKESTREAM_BOOTSTRAP="nowhere:x")
    assert done.returncode == 2 and "expected HOST:PORT, not 'nowhere:x'" in done.stderr


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["topics", "alter", "t"], "nothing to change"),
        (["topics", "create", "t", "--config", "x"], "--config takes NAME=VALUE"),
        (["groups", "reset-offsets", "g"], "exactly one of --to-earliest"),
        (["groups", "reset-offsets", "g", "--to-earliest", "--to-latest"], "exactly one of --to-earliest"),
        (["consume", "t", "--from-beginning", "--offset", "3"], "not both"),
        (["consume", "t", "--group", "g", "--partition", "0"], "a group assigns partitions"),
        (["consume", "t", "-o", "abc"], "expected N, -N, earliest, latest or @TIME, not 'abc'"),
        (["consume", "t", "-o", "@garbage"], "'garbage' is not a time"),
        (["groups", "reset-offsets", "g", "--to-timestamp", "yesterday"], "'yesterday' is not a time"),
        (["consume"], "Missing argument"),
    ],
)
def test_misuse_is_explained_with_code_2(argv: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, argv)
    assert result.exit_code == 2 and said in result.output


@pytest.mark.parametrize(
    "words",
    [
        ("--bootstrap", "127.0.0.1:1", "topics", "list"),
        ("topics", "-b", "127.0.0.1:1", "list"),
        ("topics", "list", "-b", "127.0.0.1:1"),
        ("-b", "127.0.0.1:3", "topics", "--bootstrap", "127.0.0.1:2", "list", "-b", "127.0.0.1:1"),
        ("-b", "127.0.0.1:1", "tables"),
        ("-b", "127.0.0.1:1", "brokers"),
    ],
)
def test_bootstrap_stands_before_or_after_the_command(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run(*words, cwd=tmp_path, LAKESTREAM_BOOTSTRAP="127.0.0.1:4")
    assert done.returncode == 1 and "127.0.0.1:1" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("topcs", "list"), "No such command 'topcs'. Did you mean topics?"),
        (("topics", "lst"), "No such command 'lst'. Did you mean list?"),
        (("tables", "optimise"), "Did you mean optimize?"),
        (("xyzzy",), "The commands are serve, topics"),
    ],
)
def test_a_mistyped_command_is_answered_with_what_it_may_have_meant(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(cli, list(words))
    assert result.exit_code == 2 and said in result.output


def test_a_long_name_keeps_its_ends() -> None:
    name = "a" * 30 + "-middle-" + "z" * 30
    assert shortened("short") == "short"
    assert (len(shortened(name)), shortened(name)) == (39, "a" * 19 + "…" + "z" * 19)


def test_verify_cuts_a_long_name_in_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a" * 30 + "-middle-" + "z" * 30
    _show(Report(cluster="c", sequence=1, topics=[TopicReport(topic=name)]))
    shown = capsys.readouterr().out
    assert shortened(name) in shown and "middle" not in shown


def test_shells_complete_commands_and_options_as_the_documentation_says(tmp_path: Path) -> None:
    assert "_LAKESTREAM_COMPLETE=bash_source" in (ROOT / "docs" / "OPERATIONS.md").read_text()
    asked = {"lakestream top": "topics", "lakestream topics li": "list", "lakestream --boot": "--bootstrap"}
    for words, found in asked.items():
        number = str(len(words.split()) - 1)
        told = run(cwd=tmp_path, _LAKESTREAM_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=number)
        assert told.stdout.splitlines() == [f"plain,{found}"], told.stderr


def test_a_pipeline_whose_command_log_cannot_be_made_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    asked = run("pipeline", "--data", "data", "--metadata", "file/folder/metadata.sqlite", cwd=tmp_path)
    assert asked.returncode == 1 and "Traceback" not in asked.stderr
    assert "cannot be opened" in asked.stderr and len(asked.stderr.splitlines()) == 1

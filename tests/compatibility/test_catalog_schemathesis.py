"""Schemathesis on the OpenAPI document that the catalog publishes: nothing makes a server error or a wrong answer."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.catalog_server import CatalogServer
from tests.support.landed_table import make_stream, rows

SEED = 1
SECONDS = 30
# Requests that fit the document are refused all the same: most name something that is not there.
EXCEPT = "positive_data_acceptance"
PLACES: dict[str, dict[str, str]] = {
    "anything": {},
    "a topic's table": {"namespace": "streams", "table": "orders"},
    "a namespace": {"namespace": "n"},
}


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES, ids=[name.replace(" ", "-") for name in PLACES])
def test_no_request_makes_a_server_error(tmp_path: Path, place: str) -> None:
    program = Path(sys.executable).parent / "schemathesis"
    config = tmp_path / "schemathesis.toml"
    config.write_text("".join(["[parameters]\n", *(f'{name} = "{value}"\n' for name, value in PLACES[place].items())]))
    (tmp_path / "tables").mkdir()
    with CatalogServer(tmp_path / "tables") as server:
        inside = make_stream(server)
        inside.land("orders", rows([0, 1, 2, 3]))
        inside.create_namespace("n")
        before = inside.load_table(("streams", "orders")).scan().to_arrow().num_rows
        done = subprocess.run(
            [program, "--config-file", config, "run", f"{server.uri}/openapi.json", "--seed", str(SEED), "--no-color",
             "--max-time", str(SECONDS), "--phases", "examples,coverage,fuzzing", "--continue-on-failure",
             "--checks", "all", "--exclude-checks", EXCEPT, "--suppress-health-check", "all"],
            cwd=tmp_path, capture_output=True, text=True, timeout=20 * SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        assert inside.load_table(("streams", "orders")).scan().to_arrow().num_rows == before

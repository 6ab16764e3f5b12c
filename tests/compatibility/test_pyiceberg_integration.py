"""The integration tests that PyIceberg ships in its source package, against our catalog, where they apply."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog

from tests.engines.environments import build
from tests.support.catalog_server import CatalogServer

LIMIT_S = 1500.0
PASSED_AT_LEAST = 650

LEFT_OUT: dict[str, list[str]] = {
    "needs the Spark Connect server of their set-up": ["spark"],
    "needs the Hive metastore of their set-up": ["session_catalog_hive", "hive_catalog"],
    "writes to the S3 server of their set-up, or expects paths there": [
        "test_add_files_with_timestamp_tz_ns_fails", "test_add_files_hour_transform",
        "test_merge_manifests_file_content",
    ],
    "expects a setting of the catalog of their set-up (a separator of namespaces, a default property)": [
        "test_rest_custom_namespace_separator", "test_table_properties", "test_table_properties_dict",
    ],
    "needs DuckDB or Ray beside PyIceberg": [
        "test_duckdb_url_import", "test_sanitize_character_partitioned_avro_bug", "test_ray_nan",
        "test_ray_nan_rewritten", "test_ray_all_types",
    ],
    "reads tables that Spark made in their set-up": [
        "test_create_branch", "test_create_tag", "test_daft_nan", "test_daft_nan_rewritten", "test_duckdb_nan",
        "test_empty_scan_ordered_str", "test_filter_after_arrow_scan", "test_filter_case_insensitive",
        "test_filter_case_sensitive", "test_filter_case_sensitive_by_default", "test_filter_on_new_column",
        "test_filters_on_top_level_struct", "test_incremental_append_scan_append_only",
        "test_incremental_append_scan_builder_chain",
        "test_incremental_append_scan_does_not_double_count_compacted_files",
        "test_incremental_append_scan_empty_range", "test_incremental_append_scan_ignores_non_append_snapshots",
        "test_incremental_append_scan_inclusive_from", "test_incremental_append_scan_limit",
        "test_incremental_append_scan_metrics_pruning", "test_incremental_append_scan_partition_pruning",
        "test_incremental_append_scan_schema_evolution_within_range", "test_incremental_append_scan_selected_fields",
        "test_incremental_append_scan_throws_on_disconnected_snapshots",
        "test_incremental_append_scan_unset_from_scans_from_oldest_ancestor", "test_null_list_and_map",
        "test_partitioned_tables", "test_pyarrow_batches_deletes", "test_pyarrow_batches_deletes_double",
        "test_pyarrow_batches_nan", "test_pyarrow_batches_nan_rewritten", "test_pyarrow_deletes",
        "test_pyarrow_deletes_double", "test_pyarrow_limit", "test_pyarrow_limit_with_multiple_files",
        "test_pyarrow_nan", "test_pyarrow_nan_rewritten", "test_pyarrow_to_iceberg_all_types", "test_remove_branch",
        "test_remove_tag", "test_sanitize_character", "test_scan_branch", "test_scan_tag",
        "test_set_current_snapshot", "test_set_current_snapshot_by_ref",
        "test_set_current_snapshot_chained_with_create_tag", "test_unpartitioned_fixed_table",
        "test_unpartitioned_uuid_table", "test_upgrade_table_version", "test_write_sample_manifest",
    ],
}  # fmt: skip
"""Why tests do not apply: fixtures or names of tests. One that leaves nothing out any more is an error."""


@pytest.mark.long
def test_the_tests_that_pyiceberg_ships_pass_where_they_apply(tmp_path: Path) -> None:
    place, spark = build.folder("pyiceberg"), build.folder("spark")
    if place is None or spark is None:
        missing = pytest.fail if "CI" in os.environ else pytest.skip
        missing("needs the environments of PyIceberg and Spark: run `make environments`")
    # Their modules import pyspark, also for tests that do not use it.
    [packages] = spark.glob("lib/python*/site-packages")
    plugins = Path(__file__).parent / "pyiceberg"
    names = [name for names in LEFT_OUT.values() for name in names]
    (tmp_path / "tables").mkdir()
    with CatalogServer(tmp_path / "tables") as server:
        RestCatalog("ours", uri=server.uri).create_namespace("default")
        told = {"uri": server.uri, "leave out": names, "report": str(tmp_path / "report.json")}
        done = subprocess.run(
            [place / "bin" / "python", "-m", "pytest", "-q", "--tb=short", "-p", "our_catalog",
             "-p", "no:cacheprovider", "-m", "integration", "tests/integration"],
            cwd=place / "source", capture_output=True, text=True, timeout=LIMIT_S,
            env={**os.environ, "OUR_CATALOG": json.dumps(told), "PYTHONPATH": f"{plugins}{os.pathsep}{packages}"},
        )  # fmt: skip
    assert (tmp_path / "report.json").exists(), done.stdout[-5000:] + done.stderr[-2000:]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["failed"] == [] and done.returncode == 0, done.stdout[-5000:]
    assert report["outcomes"]["passed"] >= PASSED_AT_LEAST, report["outcomes"]
    assert sorted(set(names) - set(report["left out"])) == []

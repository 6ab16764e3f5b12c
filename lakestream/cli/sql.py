"""`lakestream sql`: a query over topics, table plus tail, answered by DuckDB."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from lakestream.cli.client.broker_http import find_http_address, http_connection, read_body
from lakestream.cli.options import bootstrap_option
from lakestream.cli.output import print_table, say
from lakestream.errors import Retry

FORMATS = ("table", "csv", "json", "jsonl", "arrow")
EXPLAINED = ["explain_key", "explain_value"]
"""The columns of DuckDB's EXPLAIN; the second one is a drawing of the plan."""


@click.command()
@click.argument("query", required=False)
@click.option(
    "--file", "-f", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Read the query from a file."
)
@click.option(
    "--format", "kind", type=click.Choice(FORMATS), default="table", show_default=True, help="How rows are printed."
)
@click.option(
    "--rows", type=click.IntRange(min=1), default=1000, show_default=True, help="Most rows to print in format table."
)
@click.option("--memory", metavar="SIZE", default="", help="Memory for DuckDB, such as 2GB; the rest goes to disk.")
@click.option("--http", "address", metavar="HOST:PORT", help="A broker's HTTP port. Default: found by --bootstrap.")
@bootstrap_option
def sql(
    query: str | None, file: Path | None, kind: str, rows: int, memory: str, address: str | None, bootstrap: str
) -> None:
    """Query topics with SQL: all records up to now, both rows of the tables and records still in the log.

    QUERY is DuckDB's SQL; - reads the query from standard input. Each topic is a table of the topic's name ("quoted" if
    the name has dots or dashes), with the columns stream_partition, stream_offset, stream_timestamp, stream_key,
    stream_headers, stream_flags, stream_original and value. Keys and values are binary: text(value) and json(value)
    decode them, header(stream_headers, 'name') gives one header.

    \b
      lakestream sql "select count(*) from orders"
      lakestream sql "select json(value)->>'$.city' city, count(*) from orders group by all"
      lakestream sql --format csv "select * from orders join \\"my-topic\\" using (stream_key)" > rows.csv
    """
    from lakestream.lake.sql.output import cells, write_arrow, write_csv, write_json
    from lakestream.lake.sql.query import answered

    text = _query(query, file)
    sink = sys.stdout.buffer
    broker = address.removeprefix("http://").rstrip("/") if address else find_http_address(bootstrap)
    with _explained_failures(broker), answered(broker, text, memory) as answer:
        if kind == "arrow":
            write_arrow(answer, sink)
        elif kind == "csv":
            write_csv(answer, sink)
        elif kind == "table" and answer.schema.names == EXPLAINED:
            for plan in answer.batches:
                print(*plan.column(1).to_pylist(), sep="\n")
        elif kind == "table":
            shown, more = cells(answer, rows)
            print_table(answer.schema.names, shown, as_named=True)
            if more:
                say(f"these are the first {rows:,} rows; --rows N prints more, --format csv prints all")
        else:
            write_json(answer, sink, lines=kind == "jsonl")
    sink.flush()


@contextmanager
def _explained_failures(address: str) -> Iterator[None]:
    """If the query gets no answer, check that the address is a broker's HTTP port: that error explains more."""
    http_connection(address, None)
    try:
        yield
    except Retry:
        read_body(address, "/healthz")
        raise


def _query(query: str | None, file: Path | None) -> str:
    if (query is None) == (file is None):
        raise click.UsageError("give either a query (- reads standard input) or --file")
    if file is not None:
        return file.read_text()
    assert query is not None
    return sys.stdin.read() if query == "-" else query

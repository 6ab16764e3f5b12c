"""`lakestream verify`: checks that every acknowledged record is still there, once and unchanged."""

import asyncio
import sys
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import click

from lakestream.cli.client.broker_http import read_body
from lakestream.cli.client.cluster_client import ANSWER_S, PAUSE_S, ClusterClient, open_client
from lakestream.cli.client.codes import RETRIABLE
from lakestream.cli.client.connection import Unreachable
from lakestream.cli.options import bootstrap_option, json_option
from lakestream.cli.output import print_json, print_table, say, shortened
from lakestream.errors import LakestreamError
from lakestream.process.clock import SystemClock
from lakestream.protocol.kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

FETCH_BYTES = 4 << 20
FETCH_ATTEMPTS = 4
"""How often a fetch is tried before its failure becomes a finding."""
FINDINGS_SHOWN = 100


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--no-grace", is_flag=True, help="Report leftovers at once, also those that still await removal.")
@click.option("--http", "address", metavar="HOST:PORT", help="A broker's HTTP port. Default: found by --bootstrap.")
@json_option
@bootstrap_option
def verify(topics: tuple[str, ...], no_grace: bool, address: str | None, bootstrap: str, as_json: bool) -> None:
    """Check that every record is still there, once and unchanged, in the stream and in the table.

    Checks the named topics; without names, all. The cluster's folder or bucket has to be readable from this machine.
    The exit code is 0 if all is well, 1 if there are findings, 2 if the check could not be made.
    """
    try:
        report = asyncio.run(_verify(bootstrap, address, topics, not no_grace))
    except LakestreamError as error:
        say(f"{click.style('not checked:', fg='red', bold=True)} {error}")
        sys.exit(2)
    if as_json:
        print_json(report.as_json())
    else:
        _show(report)
    sys.exit(report.exit_code())


async def _verify(bootstrap: str, address: str | None, topics: tuple[str, ...], graces: bool) -> Any:
    from lakestream.lake.verify.checker import Checker, CheckOptions
    from lakestream.lake.verify.objects import Ownership
    from lakestream.pipeline.landing.round_names import candidates, round_of

    ownership = Ownership(lambda uri: round_of(uri) is not None, candidates)
    options = CheckOptions(now_ms=SystemClock().wall_ms(), graces=graces)
    async with open_client(bootstrap) as client:
        cluster = Brokers(client, address or await client.http_address())
        with _Bar() as bar:
            return await Checker(cluster, ownership, bar, options).verify(topics)


class Brokers:
    """The cluster as the checker reads it, by the brokers' Kafka and HTTP ports."""

    def __init__(self, client: ClusterClient, http: str) -> None:
        self.http = http
        self._client = client

    async def exported(self) -> Any:
        from lakestream.metadata.export import read_export

        return await asyncio.to_thread(read_export, lambda path: read_body(self.http, path))

    async def fetch(self, topic: str, partition: int, offset: int) -> bytes:
        from lakestream.lake.verify.stream import Unreadable
        from lakestream.protocol.kafka.errors import ErrorCode

        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        request = FetchRequest(
            max_wait_ms=100, min_bytes=1, max_bytes=FETCH_BYTES,
            topics=[FetchTopic(topic=topic, partitions=[wanted])],
        )  # fmt: skip
        problem = ""
        for attempt in range(FETCH_ATTEMPTS):
            try:
                answer: FetchResponse = await self._client.call(request, ANSWER_S)
            except Unreachable as error:
                raise Unreadable(str(error)) from error
            part = answer.responses[0].partitions[0]
            code = answer.error_code or part.error_code
            if code == 0 and part.records:
                return bytes(part.records)
            problem = ErrorCode(code).name if code else "no records"
            if code and code not in RETRIABLE:
                break
            await asyncio.sleep(PAUSE_S * 2**attempt)
        raise Unreadable(f"a fetch at offset {offset} gives {problem}")


class _Bar(AbstractContextManager["_Bar"]):
    """A progress bar on standard error if that is a terminal; otherwise nothing is shown."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %")
            self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
            self._bar.start()

    def begin(self, what: str, total: int) -> None:
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(what, total=total or None)

    def advance(self, amount: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, amount)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()


def _show(report: Any) -> None:
    columns = ("topic", "partitions", "files", "rows", "proven", "compared", "tail", "gone", "findings", "verdict")
    print_table(columns, [_row(topic) for topic in report.topics])
    for topic in report.topics:
        for note in topic.notes:
            click.echo(f"{topic.topic}: {note}")
        for one in topic.explained:
            click.echo(_explained(topic.topic, one))
    findings = report.all_findings()
    for finding in findings[:FINDINGS_SHOWN]:
        click.echo(_finding(finding))
    if len(findings) > FINDINGS_SHOWN:
        click.echo(f"and {len(findings) - FINDINGS_SHOWN} more findings (--json prints all)")
    for name, unchecked in [("WAL", report.unchecked), *((one.topic, one.unchecked) for one in report.topics)]:
        if unchecked:
            click.echo(f"{click.style('not checked:', fg='yellow', bold=True)} {name}: {unchecked}")
    if report.exit_code() == 0:
        clean = click.style("clean", fg="green", bold=True)
        topics = "1 topic" if len(report.topics) == 1 else f"{len(report.topics)} topics"
        click.echo(f"{clean}: {topics} as of command {report.sequence}")


def _row(topic: Any) -> tuple[Any, ...]:
    verdict = "findings" if topic.findings else "not checked" if topic.unchecked else "clean"
    gone = sum(one.rows for one in topic.explained)
    return (
        shortened(topic.topic), topic.partitions, topic.files, topic.table_rows, topic.proven_rows, topic.compared_rows,
        topic.tail_records, gone, len(topic.findings), verdict,
    )  # fmt: skip


def _explained(topic: str, one: Any) -> str:
    from lakestream.lake.verify.report import shown_ranges

    when = f" at {_time(one.time_ms)}" if one.time_ms else ""
    where = f": offsets {shown_ranges(one.ranges)}" if one.ranges else ""
    return f"{topic}-{one.partition}: {one.rows} rows {one.text}{when}{where}"


def _finding(finding: Any) -> str:
    from lakestream.lake.verify.report import shown_ranges

    where = finding.topic if finding.partition is None else f"{finding.topic}-{finding.partition}"
    ranges = f" (offsets {shown_ranges(finding.ranges)})" if finding.ranges else ""
    place = f" [{finding.place}]" if finding.place else ""
    head = click.style(f"{finding.kind}:", fg="red", bold=True)
    return f"{head} {f'{where}: ' if where else ''}{finding.text}{ranges}{place}"


def _time(time_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

"""`lakestream produce`: lines of standard input to records of a topic."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace

import click

from lakestream.cli.client.cluster_client import open_client
from lakestream.cli.client.texts import BadLine, Line, parse_json, parse_text, size_of
from lakestream.cli.options import bootstrap_option, pairs
from lakestream.cli.output import Progress, say
from lakestream.errors import LakestreamError

READ_BYTES = 1 << 20
CHUNKS_WAITING = 4
INTERRUPTED_S = 5.0
"""How long records that are under way may take after Ctrl-C."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@click.command()
@click.argument("topic")
@click.option("--key-separator", "-k", metavar="TEXT", help="What stands between key and value; else no keys.")
@click.option("--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every record.")
@click.option("--partition", "-p", type=click.IntRange(min=0), help="Write to this one; else by key, or in turn.")
@click.option("--json", "as_json", is_flag=True, help="Lines are objects: key, value, headers, partition, timestamp.")
@click.option("--compression", type=click.Choice(CODECS), default="none", help="How batches are compressed.")
@bootstrap_option
def produce(
    bootstrap: str,
    topic: str,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    as_json: bool,
    compression: str,
) -> None:
    """Write each line of standard input as a record, and end when all are stored.

    With --json a line is what `lakestream consume --json` prints: {"key": "k", "value": "v", "headers": [["h", "x"]]}.
    """
    extra = tuple((name, value.encode()) for name, value in pairs(headers, "--header").items())
    if sys.stdin.isatty():
        say(f"each line becomes a record of {topic}; Ctrl-D ends")

    def parse(line: bytes) -> Line:
        parsed = parse_json(line) if as_json else parse_text(line, key_separator)
        if extra:
            parsed = replace(parsed, headers=parsed.headers + extra)
        return parsed if partition is None else replace(parsed, partition=partition)

    async def run() -> bool:
        """Whether it came to the end of the input."""
        # These two take a second to import: only those who need them should wait for them.
        from lakestream.cli.client.producer import LineProducer
        from lakestream.process.clock import SystemClock

        progress = Progress(f"to {topic}")
        number = 0
        async with open_client(bootstrap) as client:
            producer = await LineProducer.open(client, SystemClock(), topic, CODECS.index(compression))
            stop = _on_interrupt()
            async for raw in standard_input(stop):
                lines: list[Line] = []
                try:
                    for line in raw:
                        number += 1
                        lines.append(parse(line))
                except BadLine as error:
                    await producer.send(lines)
                    raise BadLine(f"line {number}: {error}; those before it are written") from None
                if not await _ended_in_time(producer.send(lines), stop):
                    say(f"the last {len(lines):,} may or may not have been written")
                    break
                progress.add(len(lines), sum(map(size_of, lines)))
        progress.done("interrupted; produced" if stop.is_set() else "produced")
        return not stop.is_set()

    if not asyncio.run(run()):
        sys.exit(1)


def _on_interrupt() -> asyncio.Event:
    """Set by Ctrl-C, once; the second one ends us as it ends anybody."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def interrupt() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        stop.set()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    return stop


async def _ended_in_time(work: Awaitable[None], stop: asyncio.Event) -> bool:
    """Do the work, for as long as it takes; after an interrupt only for a moment more."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait(tasks[:1], timeout=INTERRUPTED_S)
    done = tasks[0].done()
    for task in tasks:
        task.cancel()
    if done:
        await tasks[0]
    return done


async def standard_input(stop: asyncio.Event) -> AsyncIterator[list[bytes]]:
    """Lines as they come: one that was typed at once, those of a file many at a time. None after `stop`."""
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_WAITING)
    loop = asyncio.get_running_loop()

    def read() -> None:
        # A thread, since files cannot be polled; a daemon, so that Ctrl-C does not wait for the next line.
        chunk: bytes | OSError = b"-"
        while chunk and not isinstance(chunk, OSError):
            try:
                chunk = os.read(sys.stdin.fileno(), READ_BYTES)
            except OSError as error:
                chunk = error
            room.acquire()
            # Nobody reads any more if the loop has been closed.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)

    threading.Thread(target=read, name="standard input", daemon=True).start()
    stopping = asyncio.create_task(stop.wait())
    stopping.add_done_callback(lambda _: chunks.put_nowait(b""))
    rest = b""
    while (chunk := await chunks.get()) and not stop.is_set():
        if isinstance(chunk, OSError):
            raise LakestreamError(f"standard input cannot be read: {chunk.strerror}")
        room.release()
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    stopping.cancel()
    if rest and not stop.is_set():
        yield [rest]

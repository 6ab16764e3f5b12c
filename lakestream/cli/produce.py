"""`lakestream produce`: writes lines of standard input as records of a topic."""

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
"""How long a request under way may take after Ctrl-C."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@click.command()
@click.argument("topic")
@click.option("--key-separator", "-k", metavar="TEXT", help="The text between key and value. Default: no keys.")
@click.option(
    "--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="A header for every record; repeatable."
)
@click.option("--partition", "-p", type=click.IntRange(min=0), help="Write to this partition. Default: chosen by key.")
@click.option(
    "--json", "as_json", is_flag=True, help="Read lines as objects: key, value, headers, partition, timestamp."
)
@click.option("--compression", type=click.Choice(CODECS), default="none", help="The compression of batches.")
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
    """Write each line of standard input as a record, and end when all records are stored.

    With --json a line has the form that `lakestream consume --json` prints: {"key": "k", "value": "v", "headers":
    [["h", "x"]]}. Records without a key and a partition go to the partitions in turn.
    """
    extra = tuple((name, value.encode()) for name, value in pairs(headers, "--header").items())
    if sys.stdin.isatty():
        say(f"each line becomes a record of {topic}; Ctrl-D ends the input")

    def parse(line: bytes) -> Line:
        parsed = parse_json(line) if as_json else parse_text(line, key_separator)
        if extra:
            parsed = replace(parsed, headers=parsed.headers + extra)
        return parsed if partition is None else replace(parsed, partition=partition)

    async def run() -> bool:
        """Produce; returns whether the input was read to its end."""
        # Imported here, since they take a second to import.
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
                    raise BadLine(f"line {number}: {error}; the lines before it are written") from None
                if not await _ended_in_time(producer.send(lines), stop):
                    say(f"the last {len(lines):,} records may or may not have been written")
                    break
                progress.add(len(lines), sum(map(size_of, lines)))
        progress.done("interrupted; produced" if stop.is_set() else "produced")
        return not stop.is_set()

    if not asyncio.run(run()):
        sys.exit(1)


def _on_interrupt() -> asyncio.Event:
    """An event that the first Ctrl-C sets; the second Ctrl-C ends the process."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def interrupt() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        stop.set()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    return stop


async def _ended_in_time(work: Awaitable[None], stop: asyncio.Event) -> bool:
    """Do the work; after an interrupt it has INTERRUPTED_S to finish. Returns whether it finished."""
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
    """Yield lines in the lists in which they arrive, until the end of the input or `stop`."""
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_WAITING)
    loop = asyncio.get_running_loop()

    def read() -> None:
        # In a thread, since files cannot be polled; a daemon thread, so that Ctrl-C does not wait for the next line.
        chunk: bytes | OSError = b"-"
        while chunk and not isinstance(chunk, OSError):
            try:
                chunk = os.read(sys.stdin.fileno(), READ_BYTES)
            except OSError as error:
                chunk = error
            room.acquire()
            # The call fails if the loop has been closed: then the command has ended.
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

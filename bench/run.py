"""All benchmarks, or those that are named: `python -m bench.run [--quick] [produce tiny consume latency ...]`.

Each figure is one line on standard output: the ratio, both values, the bar. A table of all of them ends the run.
Progress is on standard error. docs/BENCHMARKS.md says what is compared with what, and why that is fair.
"""

import argparse
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from bench import (
    consume,
    crowds,
    floors,
    fold,
    freshness,
    history,
    idle,
    kafka,
    landing,
    latency,
    old_offsets,
    partitions,
    produce,
    recovery,
    replay,
    table_commits,
    tiny,
)
from bench.figures import Figure, table
from bench.process import Meter, say
from bench.yard import Yard

QUESTIONS: dict[str, Callable[[Yard], list[Figure]]] = {
    "floors": floors.measure,
    "fold": fold.measure,
    "produce": produce.measure,
    "tiny": tiny.measure,
    "consume": consume.measure,
    "latency": latency.measure,
    "partitions": partitions.measure,
    "crowds": crowds.measure,
    "idle": idle.measure,
    "commits": table_commits.measure,
    "history": history.measure,
    "freshness": freshness.measure,
    "topics": freshness.measure_many,
    "burst": freshness.measure_burst,
    "crowd": freshness.measure_crowd,
    "replay": replay.measure,
    "old": old_offsets.measure,
    "landing": landing.measure,
    # This is the last question that uses Kafka, since it kills Kafka.
    "recovery": recovery.measure,
    "kernels": fold.show_kernels,
    "log": fold.show_command_log,
}
SLOW = ("kernels", "log")
"""Left out of a quick run, unless they are named."""

DEFAULT_FOLDER = Path(__file__).resolve().parent.parent / "build" / "bench" / "work"


def main() -> int:
    asked = _arguments()
    names = asked.questions or [name for name in QUESTIONS if not (asked.quick and name in SLOW)]
    missing = "" if asked.no_kafka else kafka.missing()
    if missing:
        print(f"SKIPPED: all comparisons with Apache Kafka, since these programs are missing: {missing}")
    folder = asked.folder / str(os.getpid())
    folder.mkdir(parents=True)
    with_kafka = not (missing or asked.no_kafka)
    yard = Yard(folder, quick=asked.quick, with_kafka=with_kafka, patience_s=asked.patience)
    begin, figures, failed = time.perf_counter(), [], []
    _machine()
    try:
        for name in QUESTIONS:
            if name in names:
                say(f"# {name} ({time.perf_counter() - begin:.0f} s)")
                try:
                    for figure in QUESTIONS[name](yard):
                        print(figure, flush=True)
                        figures.append(figure)
                except Exception:
                    traceback.print_exc()
                    print(f"{name}: FAILED", flush=True)
                    failed.append(name)
    finally:
        yard.close()
        shutil.rmtree(folder, ignore_errors=True)
    _summary(figures, failed, time.perf_counter() - begin)
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"any of {', '.join(QUESTIONS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter repeats: four minutes at most")
    parser.add_argument("--patience", type=float, default=0, metavar="S", help="seconds to wait for a quiet machine")
    parser.add_argument("--no-kafka", action="store_true", help="measure only Lakestream")
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="on the disk to measure; is emptied")
    asked = parser.parse_args()
    unknown = [name for name in asked.questions if name not in QUESTIONS]
    if unknown:
        parser.error(f"no such question: {', '.join(unknown)}; there are {', '.join(QUESTIONS)}")
    return asked


def _machine() -> None:
    meter = Meter([])
    time.sleep(1.0)
    busy = meter.read().foreign
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, others keep {busy:.2f} cores busy", flush=True)


def _summary(figures: list[Figure], failed: list[str], seconds: float) -> None:
    judged = [figure.passed for figure in figures if figure.passed is not None]
    print(f"\n{table(figures)}\n\n{sum(judged)} of {len(judged)} bars passed in {seconds:.0f} s")
    if failed:
        print(f"could not be measured: {', '.join(failed)}")


if __name__ == "__main__":
    sys.exit(main())

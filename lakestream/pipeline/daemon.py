"""The process that Spark's Python workers are forked from, on one machine: everything they need is loaded before.

Spark starts it as `python -m lakestream.pipeline.daemon`. A worker that was idle for a minute is ended by Spark; the
next one is a fork of this process, and so is ready in milliseconds instead of seconds. Nothing loaded here may start a
thread: a fork would not have it.
"""

import pyspark.daemon
import pyspark.worker

from lakestream.memory import tune_allocator
from lakestream.pipeline import worker

LOADED = (pyspark.worker, worker)

if __name__ == "__main__":
    tune_allocator()
    pyspark.daemon.manager()

"""The process that Spark's Python workers are forked from, on one machine, with all modules loaded before.

Spark starts it as `python -m lakestream.pipeline.spark.daemon`, and ends a worker that was idle for a minute. The next
worker is a fork of this process, and so is ready in milliseconds instead of seconds. Nothing loaded here may start a
thread, since a fork would not have the thread.
"""

import pyspark.daemon
import pyspark.worker

from lakestream.pipeline.landing import worker
from lakestream.process.allocator import tune_allocator

LOADED = (pyspark.worker, worker)

if __name__ == "__main__":
    tune_allocator()
    pyspark.daemon.manager()

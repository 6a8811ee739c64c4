"""What the program does to its own process before it imports Paddle: a CPU at its best, and quiet libraries."""

from __future__ import annotations

import argparse
import os
import sys

from ppdiffusers_tome.cpu.process import keep_freed_memory, let_mkl_use_avx2, usable_cores

_THREADS, _LOG_LEVEL, _ERRORS = "OMP_NUM_THREADS", "GLOG_minloglevel", "2"
_before: dict[str, str | None] = {}  # of the variables that the program sets: what they were


def add_process_arguments(parser: argparse.ArgumentParser) -> None:
    """What every command takes that runs a model."""
    parser.add_argument(
        "--no-keep-memory", dest="keep_memory", action="store_false",
        help="on a CPU, give freed memory back to the system at once: slower, for machines that others need too",
    )  # fmt: skip


def prepare_process(*, keep_memory: bool) -> None:
    """Do so, unless another program has imported Paddle already, whose choice it is."""
    if "paddle" in sys.modules:
        return
    given = dict(os.environ)
    if keep_memory:
        keep_freed_memory()
    let_mkl_use_avx2()
    os.environ.setdefault(_LOG_LEVEL, _ERRORS)
    if not os.environ.get(_THREADS):
        _use_the_cores()
    _before.update({name: given.get(name) for name, value in os.environ.items() if given.get(name) != value})


def get_original_environment() -> dict[str, str]:
    """The environment as the process got it, without what ``prepare_process`` set."""
    found = {**os.environ, **_before}
    return {name: value for name, value in found.items() if value is not None}


def _use_the_cores() -> None:
    """One thread per core, shared among the ranks of this machine. Paddle's default is one thread."""
    threads = max(1, usable_cores() // int(os.environ.get("PADDLE_LOCAL_SIZE") or 1))
    os.environ[_THREADS] = str(threads)
    if threads > 1:
        print(f"using {threads} threads, one per core; {_THREADS} sets another number", file=sys.stderr)

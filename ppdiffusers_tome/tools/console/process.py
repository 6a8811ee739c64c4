"""Settings of the process, made before Paddle is imported."""

from __future__ import annotations

import os
import sys

from ppdiffusers_tome.cpu.process import count_usable_cores, prepare_cpu

_original: dict[str, str | None] = {}  # variables that the program sets, with their values before


def prepare_process(*, keep_memory: bool) -> None:
    """Set up the process, unless a program has imported Paddle already."""
    if "paddle" in sys.modules:
        return
    given = dict(os.environ)
    os.environ.setdefault("GLOG_minloglevel", "2")  # errors
    # The cores are shared among the ranks of Paddle's launcher.
    ranks = int(given.get("PADDLE_LOCAL_SIZE") or 1)
    chooses = not given.get("OMP_NUM_THREADS")
    threads = prepare_cpu(max(1, count_usable_cores() // ranks) if chooses else None, keep_memory=keep_memory)
    if threads > 1 and chooses:
        print(f"using {threads} threads, one per core; OMP_NUM_THREADS sets another number", file=sys.stderr)
    _original.update({name: given.get(name) for name, value in os.environ.items() if given.get(name) != value})


def get_original_environment() -> dict[str, str]:
    """Return the environment without the variables that ``prepare_process`` set."""
    return {name: value for name, value in {**os.environ, **_original}.items() if value is not None}

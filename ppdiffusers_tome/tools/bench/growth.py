"""How the cost of merging in one block grows with the tokens, ours beside ppdiffusers' port until memory runs out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from ppdiffusers_tome.tools.bench.overhead import CONTENDERS, Peak, Problem, measure, peaks
from ppdiffusers_tome.tools.measuring.out_of_memory import die_first
from ppdiffusers_tome.tools.measuring.spread import Spread


@dataclass(frozen=True)
class Row:
    """One grid of ``side`` by ``side`` tokens.

    Attributes:
        side: of the grid, in tokens.
        match, total: milliseconds of matching, and of match, merge and unmerge, by contender; without those that ran
            out of memory.
        peaks: memory by contender; None for one that ran out of it.
    """

    side: int
    match: dict[str, Spread]
    total: dict[str, Spread]
    peaks: dict[str, Peak | None]


def grow(problem: Problem, sides: Sequence[int], repeats: int, done: Callable[[], None]) -> list[Row]:
    """Measure square grids of all ``sides``; ``done`` is called after each.

    Each side is a process of its own, in which the contenders that fit into memory alternate.
    """
    rows = []
    for side in sides:
        here = replace(problem, height=side, width=side, blocks=1)
        memory = peaks(here)
        found = _measured([name for name in CONTENDERS if memory[name] is not None], here, repeats)
        rows.append(
            Row(side, {n: by["match"] for n, by in found.items()}, {n: by["all"] for n, by in found.items()}, memory)
        )
        done()
    return rows


def _measured(names: list[str], problem: Problem, repeats: int) -> dict[str, dict[str, Spread]]:
    given = json.dumps({"names": names, "problem": asdict(problem), "repeats": repeats})
    done = subprocess.run([sys.executable, "-m", __name__, given], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: {stage: Spread(**spread) for stage, spread in by.items()} for name, by in found.items()}


def _print_measured(given: str) -> None:
    """Run in a process of its own by ``grow``."""
    die_first()
    task = json.loads(given)
    spreads = measure(Problem(**task["problem"]), task["repeats"], contenders=task["names"])
    print(json.dumps({name: {stage: asdict(spread) for stage, spread in by.items()} for name, by in spreads.items()}))


if __name__ == "__main__":
    _print_measured(sys.argv[1])

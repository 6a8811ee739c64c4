"""What ``bench results`` found on one machine or several, in words: a table of them side by side, and its notes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.bench.contenders import FREE, NONE, OURS, OURS_TILE, PORT, PRESETS, TILE
from ppdiffusers_tome.tools.bench.gpu.estimate import by_strength
from ppdiffusers_tome.tools.bench.result_files import described
from ppdiffusers_tome.tools.bench.results import TOMESD, TORCH
from ppdiffusers_tome.tools.bench.summary import OUT_OF_MEMORY
from ppdiffusers_tome.tools.cli.console.tables import Table
from ppdiffusers_tome.tools.measure.units import NOT_MEASURED, format_seconds

TITLE = "One call of the UNet, unmerged and merged"
ROWS = (NONE, OURS, OURS_TILE, *(PRESETS[name] for name in by_strength()), PORT, TORCH, TOMESD, FREE)
_SHAPES = {"sd15-random": "Stable Diffusion 1.5's shape"}


@dataclass(frozen=True)
class Machine:
    """What was found on a machine: ``found`` as ``results.as_json`` returns it."""

    found: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its processor's: ``Intel(R) Xeon(R) Processor @ 2.60GHz`` -> ``Intel Xeon``."""
        name = re.sub(r"\((R|TM)\)|@.*|\bCPU\b|\b(\d+-Core )?Processor\b", " ", self.found["on"]["processor"])
        return " ".join(name.split())

    @property
    def sizes(self) -> list[int]:
        """What was measured, in pixels."""
        return list(dict.fromkeys(cell["size"] for cell in self.found["cells"]))

    def cell(self, size: int, contender: str) -> Mapping[str, Any] | None:
        """What was found of a contender at a size; None where it was not measured."""
        cells = (cell for cell in self.found["cells"] if (cell["size"], cell["contender"]) == (size, contender))
        return next(cells, None)


def rows_of(machines: Sequence[Machine]) -> list[str]:
    """The contenders that were measured on any machine, from the first row to the last."""
    measured = {cell["contender"] for machine in machines for cell in machine.found["cells"]}
    return [contender for contender in ROWS if contender in measured]


def words(contender: str) -> str:
    """What a contender is called where nobody knows its name."""
    for preset, name in PRESETS.items():
        if name == contender:
            return f"preset {preset}, {_keys_left(ToMeConfig.preset(preset))}"
    return {
        NONE: "unmerged",
        OURS: "this package, global matching",
        OURS_TILE: f"this package, tile={TILE}",
        PORT: "ppdiffusers' own port",
        TORCH: "PyTorch, unmerged",
        TOMESD: "tomesd on PyTorch, relative to PyTorch unmerged",
        FREE: "limit: tokens dropped at no cost",
    }[contender]


def table(machines: Sequence[Machine]) -> Table:
    """A row a contender, a column a machine and size: ``5.38 s (1.58x)``."""
    columns = [(machine, size) for machine in machines for size in machine.sizes]
    result = Table(["", *(f"{size}x{size}, {machine.name}" for machine, size in columns)])
    for contender in rows_of(machines):
        result.add(words(contender), *(cell_text(machine.cell(size, contender)) for machine, size in columns))
    return result


def cell_text(cell: Mapping[str, Any] | None) -> str:
    """Seconds, and how many times as fast as unmerged; of tomesd also the share of its own unmerged seconds."""
    if cell is None:
        return NOT_MEASURED
    if cell["seconds"] is None:
        return OUT_OF_MEMORY
    seconds, speed_up = format_seconds(cell["seconds"]["median"]), cell["speed_up"]
    if speed_up is None or cell["contender"] in (NONE, TORCH):
        return seconds
    share = f", {1 / speed_up['median']:.0%}" if cell["contender"] == TOMESD else ""
    return f"{seconds} ({speed_up['median']:.2f}x{share})"


def notes(machines: Sequence[Machine]) -> list[str]:
    """What a reader must know to understand the numbers; one line per machine at the end."""
    lines = [
        "seconds of one call of the UNet, median of the rounds, in each of which all take turns; in brackets the "
        "speed-up over unmerged, likewise"
    ]
    lines += dict.fromkeys(map(_asked, machines))
    if any(machine.found["torch_on"] for machine in machines):
        lines.append(
            "PyTorch: the same shape in diffusers, in a process of its own, with its scaled_dot_product_attention; "
            "tomesd is compared with that: speed-up, and the remaining share of the seconds"
        )
    return [*lines, *map(_measured, machines)]


def _asked(machine: Machine) -> str:
    run = machine.found
    return (
        f"{_SHAPES.get(run['model'], run['model'])}, random weights, {run['dtype']}, batch size "
        f"{run['batch']} (2 per step with guidance); ratio {run['ratio']:g} where a preset sets none; "
        f"{run['attention']} attention for all on Paddle, unmerged and merged"
    )


def _measured(machine: Machine) -> str:
    """The machine, and when and how often it measured."""
    run = machine.found
    rounds = ", ".join(f"{number} at {size}" for size, number in run["rounds"].items())
    on = described({name: value for name, value in run["on"].items() if name != "memory"})
    torch = f"; PyTorch's process: {described(run['torch_on'])}" if run["torch_on"] else ""
    return f"{machine.name}, {run['date']}, rounds: {rounds}; {on}{torch}"


def _keys_left(config: ToMeConfig) -> str:
    """``1 key in 4``, of the finest level."""
    levels = len(config.ratio) if isinstance(config.ratio, Mapping) else 1
    return f"1 key in {1 / (1 - config.highest_ratio(1)):.0f}" + (f", {levels} levels" if levels > 1 else "")

"""Evaluate suites of configurations for docs/measured/fidelity/README.md, with the seconds inside the blocks.

    PYTHONPATH=tests python -m benchmarks.fidelity --suite docs/measured/suites/fidelity.jsonl --output outputs

It takes the options of ``ppdiffusers-tome compare``, and adds to its compare.json the seconds and speed-ups of the
blocks at the levels where any configuration merges. A suite has a configuration per line: a ``name``, a ``family`` that
shares a line of docs/measured/frontier.py, ``contender`` (``ours`` or ``port``), and settings of ``ToMeConfig``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.variants import PORT, apply_port
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.cli.commands import compare
from ppdiffusers_tome.tools.compare.configurations import REFERENCE, Configuration, parse_compared
from ppdiffusers_tome.tools.console.output import import_quietly
from ppdiffusers_tome.tools.console.parsing import Parser
from ppdiffusers_tome.tools.generation.checks import parse_settings
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
from ppdiffusers_tome.tools.generation.loading import load_for_prompts
from ppdiffusers_tome.tools.measure.stats import Median


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__)
    compare.add_arguments(parser)
    parser.add_argument("--port-ratios", type=float, nargs="+", default=[], metavar="X")
    parser.add_argument("--suite", type=Path, nargs="+", default=[], metavar="FILE")
    args = parser.parse_args(argv)
    settings = parse_settings(args)
    args.prompt = args.prompt or list(settings.model.prompts)
    configurations = parse_compared(args, settings.steps) if args.ratios or args.configs else [REFERENCE]
    configurations += [port(ratio, getattr(args, "tome_max_downsample", None)) for ratio in args.port_ratios]
    configurations += [each for path in args.suite for each in read_suite(path)]
    compare.compare(args, settings, configurations)
    path = args.output / "compare.json"
    found = json.loads(path.read_text())
    with import_quietly():
        loaded = load_for_prompts(settings, found["run"]["prompts"])
        add_block_seconds(loaded, {each.name: each for each in configurations}, found)
    path.write_text(json.dumps(found, indent=2) + "\n")


@dataclass(frozen=True)
class Contender(Configuration):
    """A configuration of a suite."""

    family: str | None = None
    contender: str = "ours"

    def apply(self, loaded: LoadedPipeline) -> None:
        if self.contender != PORT:
            super().apply(loaded)
            return
        REFERENCE.apply(loaded)  # which removes the port, too; of its settings only two are those of ``ToMeConfig``
        apply_port(loaded.pipe, self.tome.to_dict()["ratio"], self.tome.max_downsample)


def port(
    ratio: float, max_downsample: int | None = None, name: str | None = None, family: str | None = None
) -> Contender:
    """Return ppdiffusers' own port with a ratio."""
    config = ToMeConfig(ratio=ratio, max_downsample=max_downsample)
    name = name or config.summary.replace("ratio", PORT, 1)
    return Contender(name, config, family=family or PORT, contender=PORT)


def read_suite(path: Path) -> Iterator[Contender]:
    """Read a file with one configuration per line."""
    for line in filter(str.strip, path.read_text(encoding="utf-8").splitlines()):
        settings: dict[str, Any] = {"contender": "ours", "family": None} | json.loads(line)
        name, contender, family = (settings.pop(key) for key in ("name", "contender", "family"))
        if contender == PORT:
            yield port(**settings, name=name, family=family)
        else:
            yield Contender(name, ToMeConfig(**settings), family=family)


def add_block_seconds(loaded: LoadedPipeline, by_name: dict[str, Configuration], found: dict[str, Any]) -> None:
    """Time the blocks of every image, and add the medians to an evaluation.

    Configurations take turns, image by image.
    """
    levels, rows = find_merging_levels(loaded.pipe, list(by_name.values())), found["configurations"]
    seconds: dict[str, list[float]] = {row["configuration"]["name"]: [] for row in rows}
    for number in range(len(rows[0]["samples"])):
        for row in rows:
            configuration, sample = by_name[row["configuration"]["name"]], row["samples"][number]
            image = sample["prompt"], sample["seed"]
            configuration.apply(loaded)
            if number == 0:
                loaded.generate(*image, steps=1)  # the first image of a configuration is slower
            with time_blocks(loaded.pipe) as by_level:
                loaded.generate(*image, steps=configuration.steps)
            sample["block_seconds"] = {str(level): value for level, value in by_level.items()}
            seconds[configuration.name].append(sum(by_level[level] for level in levels))
    REFERENCE.apply(loaded)
    for row in rows:
        own = seconds[row["configuration"]["name"]]
        row["block_seconds"] = asdict(Median.from_values(own))
        speedups = [slow / fast for slow, fast in zip(seconds[REFERENCE.name], own, strict=True)]
        row["block_speedup"] = asdict(Median.from_values(speedups))
    found["levels"] = levels


@contextmanager
def time_blocks(pipe: Any) -> Iterator[dict[int, float]]:
    """Sum the seconds inside the transformer blocks that could merge, by level.

    Merging counts: a configuration must be applied before, so that these hooks run before all others of a block and
    after all others. On a GPU every block waits for the device before and after.
    """
    from ppdiffusers_tome.patching.blocks import find_blocks
    from ppdiffusers_tome.patching.models import list_models
    from ppdiffusers_tome.tuning.measurement import read_clock

    seconds: dict[int, float] = {}
    starts: list[float] = []
    handles = []

    def start(block: Any, inputs: Any) -> Any:
        starts.append(read_clock())

    def stop(level: int, block: Any, inputs: Any, output: Any) -> Any:
        seconds[level] += read_clock() - starts.pop()

    for _, model in list_models(pipe):
        for block in find_blocks(model):
            seconds.setdefault(block.level, 0.0)
            first = block.layer.register_forward_pre_hook(start)
            block.layer._forward_pre_hooks.move_to_end(first._hook_id, last=False)
            handles += [first, block.layer.register_forward_post_hook(partial(stop, block.level))]
    try:
        yield seconds
    finally:
        for handle in handles:
            handle.remove()


def find_merging_levels(pipe: Any, configurations: Sequence[Configuration]) -> list[int]:
    """Return the levels, finest first, at which at least one configuration merges."""
    from ppdiffusers_tome.patching.blocks import find_blocks, select_blocks
    from ppdiffusers_tome.patching.models import list_models

    models = [find_blocks(model) for _, model in list_models(pipe)]
    configs = [each.tome for each in configurations if not each.tome.changes_nothing]
    return sorted({block.level for config in configs for blocks in models for block in select_blocks(blocks, config)})


if __name__ == "__main__":
    pages.prepare()
    main()

"""The configurations that ``compare`` compares. Imports no Paddle."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import UNMERGED, ToMeConfig
from ppdiffusers_tome.settings.text import format_count, format_setting
from ppdiffusers_tome.tools.console.tome_arguments import (
    DEFAULT_PRESET,
    choose_ratio,
    combine_options,
    get_tome_options,
    name_option,
    parse_number,
    refuse_conflicts,
)

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline


@dataclass(frozen=True)
class Configuration:
    """One of the configurations that are compared."""

    name: str  # unique in a comparison
    tome: ToMeConfig = UNMERGED
    steps: int | None = None  # where they are fewer than those of all others

    def apply(self, loaded: LoadedPipeline) -> None:
        """Apply it to a pipeline; benchmarks have kinds that apply something else."""
        loaded.apply(self.tome)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON."""
        return {**vars(self), "tome": None if self.tome.changes_nothing else self.tome.to_dict()}


REFERENCE = Configuration("unmerged")  # with which all others are compared


def add_compared_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is compared with the unmerged pipeline."""
    group = parser.add_argument_group("what is compared with the unmerged pipeline")
    group.add_argument("--ratios", type=parse_number, nargs="*", metavar="X",
                       help=f"fractions to merge (default: --configs {DEFAULT_PRESET})")
    group.add_argument("--configs", nargs="+", default=[], metavar="FILE",
                       help="presets, or JSON files of settings, with the options of token merging")
    group.add_argument("--fewer-steps", type=int, nargs="+", default=[], metavar="N",
                       help="also unmerged with so many steps, for the same time")


def parse_compared(args: argparse.Namespace, steps: int) -> list[Configuration]:
    """Return the unmerged pipeline and what is compared with it."""
    changes = get_tome_options(args)
    paths, ratios = args.configs, args.ratios or []
    if args.ratios is None and not paths:
        paths, ratios = ([], [choose_ratio(changes)]) if changes else ([DEFAULT_PRESET], [])
    configs = [combine_options(None, {**changes, "ratio": ratio}, ratio="--ratios") for ratio in ratios]
    compared = [Configuration(config.summary, config) for config in configs if not config.changes_nothing]
    compared += [_read_config(path, changes) for path in paths]
    refuse_conflicts(args, [each.tome for each in compared])
    if changes and not compared:
        raise UserError(f"{name_option(next(iter(changes)))} has no effect without ratios; give --ratios, too")
    for number in args.fewer_steps:
        if not 1 <= number < steps:
            raise UserError(f"--fewer-steps {number} must be at least 1 and below {steps}, the steps of all others")
        compared.append(Configuration(format_count(number, "step"), steps=number))
    if not compared:
        raise UserError("nothing is to be compared with the unmerged pipeline; give --ratios, such as --ratios 0.5")
    by_name: dict[str, Configuration] = {}
    for each in (REFERENCE, *compared):
        if by_name.setdefault(each.name, each) != each:
            raise UserError(
                f"two different configurations are called {each.name!r}; rename one of the files of --configs"
            )
    return list(by_name.values())


def _read_config(path: str, changes: dict[str, Any]) -> Configuration:
    """Return a preset or file with the command's own settings."""
    config = combine_options(path, changes)
    if config.changes_nothing:
        raise UserError(f"--configs {path} changes nothing, and the unmerged pipeline is compared anyway; leave it out")
    values = config.to_dict()
    described = "".join(f", {name} {format_setting(values[name])}" for name in changes)
    return Configuration(f"{Path(path).stem}{described}", config)

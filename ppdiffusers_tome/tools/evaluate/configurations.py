"""Configurations to compare: unmerged, with fewer steps, and merged with settings.

Imports no Paddle.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import ToMeError, UserError
from ppdiffusers_tome.settings.combine import combine_settings
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import is_preset
from ppdiffusers_tome.settings.text import format_setting
from ppdiffusers_tome.tools.generation.arguments import name_option
from ppdiffusers_tome.tools.generation.settings import (
    changes_nothing,
    get_tome_overrides,
    parse_tome_config,
    refuse_without_merging,
)
from ppdiffusers_tome.tools.measure.units import format_count

UNMERGED = "unmerged"
RATIO = 0.5  # if nothing is given


@dataclass(frozen=True)
class Configuration:
    """One of the configurations that are compared."""

    name: str  # unique in an evaluation
    tome: ToMeConfig | None  # None for the unmerged pipeline
    family: str  # shares a line of the plot
    steps: int | None = None  # where they are fewer than those of all others

    def apply(self, pipe: Any) -> None:
        """Apply it to a pipeline, in place of the one before."""
        from ppdiffusers_tome.api import apply_tome, remove_tome

        remove_tome(pipe)
        if self.tome is not None:
            apply_tome(pipe, config=self.tome)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON."""
        return {**vars(self), "tome": None if self.tome is None else self.tome.to_dict()}


def make_unmerged() -> Configuration:
    """Return the unmerged pipeline, with which all others are compared."""
    return Configuration(UNMERGED, None, UNMERGED)


def make_merged(config: ToMeConfig, name: str | None = None, family: str | None = None) -> Configuration:
    """Return a configuration with settings, by default named after them.

    Of one family are those that have all but the ratio and the seed in common.
    """
    settings = replace(config, ratio=0.0, seed=0).summary.split(", ")[1:]
    return Configuration(name or config.summary, config, family or ", ".join(["merged", *settings]))


def add_compared_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is compared with the unmerged pipeline."""
    group = parser.add_argument_group("what is compared with the unmerged pipeline")
    group.add_argument("--ratios", type=float, nargs="*", metavar="X",
                       help=f"fractions to merge (default, if nothing else is given: {RATIO})")
    group.add_argument("--configs", nargs="+", default=[], metavar="FILE",
                       help="presets, or JSON files of settings, with the options of token merging")
    group.add_argument("--fewer-steps", type=int, nargs="+", default=[], metavar="N",
                       help="also unmerged with so many steps, for the same time")


def parse_compared(args: argparse.Namespace, steps: int) -> list[Configuration]:
    """Return the unmerged pipeline and what is compared with it.

    Raises:
        UserError: a file cannot be read, two different configurations have the same name, or there are none.
    """
    overrides = get_tome_overrides(args)
    ratios: Sequence[float | None] | None = args.ratios
    if ratios is None:
        ratios = [None] if args.config is not None else [] if args.configs else [RATIO]  # None: that of --config
    if args.config is not None and not ratios:
        raise UserError("--config has no effect without ratios; give --ratios, too, or omit it")
    configs = [parse_tome_config(args, ratio) for ratio in ratios]
    compared = [make_merged(config) for config in configs if not changes_nothing(config)]
    compared += [_read_config(path, overrides) for path in args.configs]
    refuse_without_merging(args, [each.tome for each in compared if each.tome is not None])
    if overrides and not compared:
        raise UserError(f"{name_option(next(iter(overrides)))} has no effect without ratios; give --ratios, too")
    for number in args.fewer_steps:
        if not 1 <= number < steps:
            raise UserError(f"--fewer-steps {number} must be at least 1 and below {steps}, the steps of all others")
        compared.append(replace(make_unmerged(), name=format_count(number, "step"), family="fewer steps", steps=number))
    if not compared:
        raise UserError("nothing is to be compared with the unmerged pipeline; give --ratios, such as --ratios 0.5")
    by_name = {UNMERGED: make_unmerged()}
    for configuration in compared:
        if by_name.setdefault(configuration.name, configuration) != configuration:
            raise UserError(
                f"two different configurations are called {configuration.name!r}; rename one of the files of --configs"
            )
    return list(by_name.values())


def _read_config(path: str, overrides: Mapping[str, Any]) -> Configuration:
    """Return a preset or file with the command's own settings."""
    try:
        config = combine_settings(path, overrides)
    except ToMeError as error:
        raise UserError(f"--configs {error}") from error  # which names the path
    family, changes = str(path) if is_preset(path) else None, ""
    if overrides:
        family, values = None, config.to_dict()
        changes = "".join(f", {name} {format_setting(values[name])}" for name in overrides)
    return make_merged(config, f"{Path(path).stem}{changes}", family)

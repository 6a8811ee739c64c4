"""Configurations to compare: unmerged, with fewer steps, ppdiffusers' port, and this package with settings.

Imports no Paddle.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import ToMeError, UserError
from ppdiffusers_tome.settings.combine import combine_settings
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import is_preset
from ppdiffusers_tome.settings.types import format_setting
from ppdiffusers_tome.tools.generation.arguments import name_option
from ppdiffusers_tome.tools.generation.settings import changes_nothing, get_tome_overrides, parse_tome_config
from ppdiffusers_tome.tools.measure.units import counted

UNMERGED, PORT, OURS = "unmerged", "port", "ours"
RATIOS = (0.25, 0.5, 0.7)


@dataclass(frozen=True)
class Configuration:
    """One of the configurations that are compared.

    Attributes:
        name: unique in an evaluation.
        contender: ``unmerged``, ``port`` or ``ours``.
        tome: the settings, of which the port has ratio and max_downsample; None for the unmerged pipeline.
        family: configurations of one family share a line of the plot.
        steps: of the denoising, where they are fewer than those of all others.
    """

    name: str
    contender: str
    tome: ToMeConfig | None
    family: str
    steps: int | None = None

    def apply(self, pipe: Any) -> None:
        """Apply it to a pipeline, in place of the one before.

        Raises:
            NothingToMergeError: the pipeline has no block that merges with these settings.
        """
        from ppdiffusers_tome.api import apply_tome, remove_tome

        remove_tome(pipe)  # which removes the port, too
        if self.tome is not None and self.contender == PORT:
            apply_port(pipe, self.tome.to_dict()["ratio"], self.tome.max_downsample)
        elif self.tome is not None:
            apply_tome(pipe, config=self.tome)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, equal to those that JSON restores."""
        tome = None if self.tome is None else self.tome.to_dict()
        return json.loads(json.dumps({**vars(self), "tome": tome}))


def unmerged() -> Configuration:
    """Return the unmerged pipeline, with which all others are compared."""
    return Configuration(UNMERGED, UNMERGED, None, UNMERGED)


def ours(config: ToMeConfig, name: str | None = None, family: str | None = None) -> Configuration:
    """Return this package with settings, by default named after them."""
    return Configuration(name or config.summary, OURS, config, family or _name_family(OURS, config))


def port(
    ratio: float, max_downsample: int | None = None, name: str | None = None, family: str | None = None
) -> Configuration:
    """Return ppdiffusers' own port of tomesd.

    Raises:
        ToMeError: it has no such setting.
    """
    config = ToMeConfig(ratio=ratio, max_downsample=max_downsample)
    if not isinstance(config.to_dict()["ratio"], float):
        raise UserError(f"ratio={ratio!r} must be one number for the port, such as 0.5")
    default_name = config.summary.replace("ratio", PORT, 1)
    return Configuration(name or default_name, PORT, config, family or _name_family(PORT, config))


def _name_family(contender: str, config: ToMeConfig) -> str:
    """Name the settings without ratio and seed, such as ``ours, tile 16``."""
    return ", ".join([contender, *replace(config, ratio=0.0, seed=0).summary.split(", ")[1:]])


def apply_port(model_or_pipe: Any, ratio: float, max_downsample: int | None = None) -> None:
    """Apply ppdiffusers' own port of tomesd; ``remove_tome`` removes it.

    Args:
        model_or_pipe: a UNet, or a pipeline that has one.
        ratio: fraction of the tokens to merge.
        max_downsample: 1, 2, 4, 8, or None for the finest level that has attention.
    """
    from ppdiffusers_tome.install import install, uninstall
    from ppdiffusers_tome.patching.blocks import find_blocks

    level = max_downsample or min(block.level for block in find_blocks(getattr(model_or_pipe, "unet", model_or_pipe)))
    uninstall()  # our methods take the place of the port's
    try:
        model_or_pipe.apply_tome(ratio=ratio, max_downsample=level)
    finally:
        install()


def add_compared_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is compared with the unmerged pipeline."""
    group = parser.add_argument_group("what is compared with the unmerged pipeline")
    group.add_argument("--ratios", type=float, nargs="*", metavar="X",
                       help=f"fractions to merge (default, if nothing else is given: {' '.join(map(str, RATIOS))})")
    group.add_argument("--port-ratios", type=float, nargs="+", default=[], metavar="X",
                       help="the same for ppdiffusers' own port of tomesd")
    group.add_argument("--configs", nargs="+", default=[], metavar="FILE",
                       help="presets, or JSON files of settings, with the options of token merging")
    group.add_argument("--fewer-steps", type=int, nargs="+", default=[], metavar="N",
                       help="also unmerged with so many steps, for the same time")


def parse_compared(args: argparse.Namespace, steps: int) -> list[Configuration]:
    """Return the unmerged pipeline and what is compared with it, each once.

    Args:
        args: of ``add_compared_arguments``.
        steps: of the denoising.

    Raises:
        UserError: a file cannot be read, two different configurations have the same name, or there are none.
    """
    overrides = get_tome_overrides(args)
    ratios: Sequence[float | None] | None = args.ratios
    if ratios is None:
        has_others = args.port_ratios or args.configs
        ratios = [None] if args.config is not None else [] if has_others else RATIOS  # None: that of --config
    _refuse_unused(args, overrides, has_ratios=bool(ratios))
    merged = [parse_tome_config(args, ratio) for ratio in ratios]
    compared = [ours(tome) for tome in merged if not changes_nothing(tome)]
    compared += [port(ratio, overrides.get("max_downsample")) for ratio in args.port_ratios]
    compared += [_read_config(path, overrides) for path in args.configs]
    for number in args.fewer_steps:
        if not 1 <= number < steps:
            raise UserError(f"--fewer-steps {number} must be at least 1 and below {steps}, the steps of all others")
        compared.append(replace(unmerged(), name=counted(number, "step"), family="fewer steps", steps=number))
    if not compared:
        raise UserError("nothing is to be compared with the unmerged pipeline; give --ratios, such as --ratios 0.5")
    by_name = {UNMERGED: unmerged()}
    for configuration in compared:
        if by_name.setdefault(configuration.name, configuration) != configuration:
            raise UserError(
                f"two different configurations are called {configuration.name!r}; rename one of the files of --configs"
            )
    return list(by_name.values())


def _refuse_unused(args: argparse.Namespace, overrides: Mapping[str, Any], *, has_ratios: bool) -> None:
    """Refuse settings that nothing of what is compared would have."""
    unused = set() if has_ratios or args.configs else {name_option(name) for name in overrides}
    if args.port_ratios:
        unused -= {name_option("max_downsample")}
    if args.config is not None and not has_ratios:
        unused.add("--config")
    for option in sorted(unused):
        raise UserError(
            f"{option} has no effect on --port-ratios and --fewer-steps; give --ratios or --configs, too, or omit it"
        )


def _read_config(path: str, overrides: Mapping[str, Any]) -> Configuration:
    """Return a preset or a file of settings, with the command's own settings."""
    try:
        config = combine_settings(path, overrides)
    except ToMeError as error:
        raise UserError(f"--configs {error}") from error  # which names the path
    family, changes = str(path) if is_preset(path) else None, ""
    if overrides:
        family, values = None, config.to_dict()
        changes = "".join(f", {name} {format_setting(values[name])}" for name in overrides)
    return ours(config, f"{Path(path).stem}{changes}", family)

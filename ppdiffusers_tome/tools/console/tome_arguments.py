"""The arguments of token merging that commands share. Imports no Paddle."""

import argparse
import re
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

from ppdiffusers_tome.errors import ToMeError, UserError
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.combine import combine_settings
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import PRESETS

DEFAULT_PRESET = "balanced"  # the preset where no setting of merging is given
# Options that are not called like their setting: `--seed` is the image's.
_OPTION_NAMES = {"seed": "tome-seed", "use_rand": "rand"}
_HELP = {  # of the settings that are not only listed
    "method": f"{', '.join(METHODS)} (default: tome)",
    "cache": "fraction of the steps to predict; alone with a ratio of 0",
}


def add_tome_arguments(parser: argparse.ArgumentParser, *, default: str | None = None) -> None:
    """Add an option for each setting of ``ToMeConfig`` but the ratio.

    Options that the user omits are not set. With a ``default``, which help names, ``--ratio`` and ``--config`` are
    added, too.
    """
    group = parser.add_argument_group("token merging")
    if default is not None:
        group.add_argument("--config", metavar="FILE", help=f"a preset ({', '.join(PRESETS)}) or a JSON file")
        group.add_argument("--ratio", type=float, metavar="X", help=f"fraction to merge (default: {default})")
    listed = []
    for field in fields(ToMeConfig)[1:]:  # all but the ratio
        option = name_option(field.name)
        settings: dict[str, Any] = {"type": _parse_value, "metavar": "X"}
        if field.name == "method":
            settings = {"metavar": "NAME"}
        elif field.type == "bool":
            settings = {"action": argparse.BooleanOptionalAction}
        if field.name not in _HELP:
            listed.append(option.replace("--", "--[no-]") if field.type == "bool" else option)
        group.add_argument(
            option, dest=f"tome_{field.name}", default=argparse.SUPPRESS,
            help=_HELP.get(field.name, argparse.SUPPRESS), **settings,
        )  # fmt: skip
    # Help has no lines to spare for rarely used options, so the title lists those that it hides.
    group.title = textwrap.fill(f"token merging, also {' '.join(listed)}", 76, break_on_hyphens=False)


def name_option(setting: str) -> str:
    """Return the option of a setting of ``ToMeConfig``."""
    return "--" + _OPTION_NAMES.get(setting, setting).replace("_", "-")


def parse_tome_config(args: argparse.Namespace) -> ToMeConfig:
    """Return the settings of a command with ``--ratio`` and ``--config``."""
    overrides, base = get_tome_overrides(args), args.config
    if args.ratio is not None:
        if base is not None:
            raise UserError(f"--ratio {args.ratio:g} and --config {base} both hold the ratio; give one of them")
        overrides["ratio"] = args.ratio
    elif base is None and not overrides:
        base = DEFAULT_PRESET
    tome = combine_options(base, overrides)
    refuse_conflicts(args, [tome])
    return tome


def combine_options(
    base: ToMeConfig | str | None, overrides: dict[str, Any], *, ratio: str = "--ratio"
) -> ToMeConfig:
    """Combine settings as ``combine_settings``; errors name options that were given."""
    def name(found: re.Match[str]) -> str:
        option = ratio if found[1] == "ratio" else name_option(found[1])
        return f"{option} " if found[1] in overrides else found[0]

    try:
        return combine_settings(base, overrides)
    except ToMeError as error:
        raise UserError(re.sub(r"^(\w+)=", name, str(error))) from error


def refuse_conflicts(args: argparse.Namespace, configs: Sequence[ToMeConfig]) -> None:
    """Refuse options of merging where no settings merge."""
    if all(config.ratio == 0 for config in configs):
        unused = [name_option(name) for name in get_tome_overrides(args) if name != "cache"]
        if unused:
            raise UserError(f"{unused[0]} has no effect without merging; give a ratio above 0, too, or omit it")


def get_tome_overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of token merging that are options, without the ratio."""
    given = vars(args)
    return {name: given[f"tome_{name}"] for name in vars(ToMeConfig()) if f"tome_{name}" in given}


def _parse_value(text: str) -> Any:
    """Return the value of a text, which ``ToMeConfig`` checks."""
    for number_type in (int, float):
        with suppress(ValueError):
            return number_type(text)
    return None if text == "none" else text

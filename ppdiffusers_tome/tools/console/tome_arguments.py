"""The arguments of token merging that commands share. Imports no Paddle."""

import argparse
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
    "cache": "fraction of the steps to predict; alone in generate and compare, nothing merges",
}


def add_tome_arguments(parser: argparse.ArgumentParser, *, default: str | None = None) -> None:
    """Add an option for each setting of ``ToMeConfig`` but the ratio.

    Omitted options are not set. With a ``default``, which help names, ``--ratio`` and ``--config`` are added, too.
    """
    group = parser.add_argument_group("token merging")
    if default is not None:
        group.add_argument("--config", metavar="FILE", help=f"a preset ({', '.join(PRESETS)}) or a JSON file")
        group.add_argument("--ratio", type=parse_number, metavar="X", help=f"fraction to merge (default: {default})")
    listed = []
    for field in fields(ToMeConfig)[1:]:  # all but the ratio
        option, kind = name_option(field.name), field.metadata["bounds"].kind
        settings: dict[str, Any] = {"type": lambda text: None if text == "none" else parse_number(text), "metavar": "X"}
        if kind is str:
            settings = {"metavar": "NAME"}
        elif kind is bool:
            settings = {"action": argparse.BooleanOptionalAction}
        if field.name not in _HELP:
            listed.append(option.replace("--", "--[no-]") if kind is bool else option)
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
    changes, base = get_tome_options(args), args.config
    if args.ratio is not None:
        if base is not None:
            raise UserError(f"--ratio {args.ratio} and --config {base} both hold the ratio; give one of them")
        changes["ratio"] = args.ratio
    elif base is None and not changes:
        base = DEFAULT_PRESET
    elif base is None:
        changes["ratio"] = choose_ratio(changes)
    tome = combine_options(base, changes)
    refuse_conflicts(args, [tome])
    return tome


def choose_ratio(changes: Mapping[str, Any]) -> float | Sequence[float]:
    """Return the ratio where none is given; beside a cache alone nothing merges."""
    return 0.0 if changes.keys() == {"cache"} else ToMeConfig().ratio


def combine_options(base: ToMeConfig | str | None, changes: dict[str, Any], *, ratio: str = "--ratio") -> ToMeConfig:
    """Combine settings as ``combine_settings``; errors name options that were given."""
    if isinstance(given := changes.get("ratio"), str):
        option = ratio.replace("ratio", "config")
        raise UserError(f"{ratio} {given!r} must be a number, such as 0.5; presets and files are given by {option}")
    with name_options({name: ratio if name == "ratio" else name_option(name) for name in changes}):
        return combine_settings(base, changes)


@contextmanager
def name_options(options: Mapping[str, str]) -> Iterator[None]:
    """Begin refusals with the option, in place of ``name=``."""
    try:
        yield
    except ToMeError as error:
        name, _, rest = str(error).partition("=")
        raise UserError(f"{options[name]} {rest}" if name in options else str(error)) from error


def refuse_conflicts(args: argparse.Namespace, configs: Sequence[ToMeConfig]) -> None:
    """Refuse options of merging where no settings merge."""
    if all(config.ratio == 0 for config in configs):
        unused = [name_option(name) for name in get_tome_options(args) if name != "cache"]
        if unused:
            raise UserError(f"{unused[0]} has no effect without merging; give a ratio above 0, too, or omit it")


def get_tome_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of token merging that are options, without the ratio."""
    given = vars(args)
    return {name: given[f"tome_{name}"] for name in vars(ToMeConfig()) if f"tome_{name}" in given}


def parse_number(text: str) -> Any:
    """Return a number, or other text, which the check of its bounds refuses."""
    for number_type in (int, float):
        with suppress(ValueError):
            return number_type(text)
    return text

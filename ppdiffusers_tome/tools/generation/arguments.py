"""The arguments that commands share. Imports no Paddle.

A command's help has at most 60 lines, so a text here takes one, and rarely used settings are listed by name.
"""

import argparse
import textwrap
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.combine import UNSET
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import PRESETS
from ppdiffusers_tome.tools.generation.models import PHOTOGRAPHS
from ppdiffusers_tome.tools.generation.settings import DTYPES, PRECISIONS, SCHEDULERS

DEFAULT_PRESET = "balanced"  # the preset where no setting of merging is given
# Options that are not called like their setting: `--seed` is the image's.
_OPTION_NAMES = {"seed": "tome-seed", "use_rand": "rand"}
_ATTRIBUTES = {each.name: each.name for each in fields(ToMeConfig)} | {"seed": "tome_seed"}
_HELP = {  # of the settings that are not only listed
    "method": f"{', '.join(METHODS)} (default: tome)",
    "cache": "fraction of the steps to predict",
}


def add_image_arguments(
    parser: argparse.ArgumentParser, *, several: bool = True, file: bool = False, several_seeds: bool = False,
    photo: bool = True,
) -> None:  # fmt: skip
    """Add all that an image depends on but token merging.

    Args:
        parser: of the command.
        several, file: whether there may be several prompts, and a file of them.
        several_seeds: whether each prompt may have several seeds.
        photo: whether there may be a photo, whose edges guide.
    """
    group = parser.add_argument_group("the image")
    group.add_argument("--prompt", action="append", metavar="TEXT",
                       help=f"what to generate{'; repeat it for more images' if several else ''}")
    if file:
        group.add_argument("--prompts", type=Path, metavar="FILE", help="a text with a prompt on each line")
    group.add_argument("--negative-prompt", metavar="TEXT", help="what to keep out of the image")
    group.add_argument("--model", metavar="MODEL", help=f"folder, hub name; in a clone {PHOTOGRAPHS}, dit or emoji")
    group.add_argument("--steps", type=int, metavar="N", help="denoising steps (default: 20; photographs, dit: 10)")
    group.add_argument("--guidance-scale", type=float, metavar="X",
                       help="default: the pipeline's, mostly 7.5; photographs, dit: 1.5")
    group.add_argument("--scheduler", choices=list(SCHEDULERS), metavar="NAME", help=" ".join(SCHEDULERS))
    for name in ("height", "width"):
        group.add_argument(f"--{name}", type=int, metavar="PIXELS", help="default: the model's native size")
    if several_seeds:
        group.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N", help="of all prompts (default: 0)")
    else:
        of_which = "of the first image, the next has N + 1" if several else "of the image"
        group.add_argument("--seed", type=int, default=0, metavar="N", help=f"{of_which} (default: 0)")
    group.add_argument("--dtype", choices=list(DTYPES), default=DTYPES[0], metavar="NAME",
                       help=f"{', '.join(DTYPES)} (default: {DTYPES[0]})")
    either = group.add_mutually_exclusive_group()
    either.add_argument("--xformers", action="store_true", help="memory efficient attention; needs a GPU")
    either.add_argument("--compile", nargs="?", const=PRECISIONS[0], choices=PRECISIONS, metavar="PRECISION",
                        help="fastest; for a CPU with openvino: float32 (default), or bfloat16 if it has that")
    group = parser.add_argument_group("ControlNet")
    group.add_argument("--controlnet", metavar="MODEL", help="a folder or a hub name; in a clone controlnet")
    if photo:
        group.add_argument("--image", type=Path, metavar="FILE", help="a photo, whose edges guide")
        group.add_argument("--controlnet-scale", type=float, metavar="X", help="strength (default: 1)")


def add_tome_arguments(parser: argparse.ArgumentParser, *, default: str | None = None) -> None:
    """Add the settings of ``ToMeConfig``.

    Of those but the ratio and ``--config``, options that the user omits set no attribute.

    Args:
        parser: of the command.
        default: what its help says stands for the ratio, or preset or file, which are added; None to add neither.
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
            option, dest=_ATTRIBUTES[field.name], default=argparse.SUPPRESS,
            help=_HELP.get(field.name, argparse.SUPPRESS), **settings,
        )  # fmt: skip
    group.title = textwrap.fill(f"token merging, also {' '.join(listed)}", 76, break_on_hyphens=False)


def name_option(setting: str) -> str:
    """Return the option of a setting of ``ToMeConfig``."""
    return "--" + _OPTION_NAMES.get(setting, setting).replace("_", "-")


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add where the results go."""
    parser.add_argument("--output", type=Path, default=Path("outputs"), metavar="FOLDER", help="default: outputs")
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")


def get_tome_overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of token merging that are options, without the ratio."""
    given = {name: getattr(args, attribute, UNSET) for name, attribute in _ATTRIBUTES.items() if name != "ratio"}
    return {name: value for name, value in given.items() if value is not UNSET}


def _parse_value(text: str) -> Any:
    """Return the value of a text, which ``ToMeConfig`` checks."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return None if text == "none" else text

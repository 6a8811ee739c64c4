"""The arguments that commands share. Imports no Paddle."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import presets
from ppdiffusers_tome.tools.generation.edges import CROP, FIT_MODES
from ppdiffusers_tome.tools.generation.model_loader import DTYPES
from ppdiffusers_tome.tools.generation.model_sources import BUNDLED, BUNDLED_DIT
from ppdiffusers_tome.tools.generation.schedulers import SCHEDULERS

# Options that are not called like their setting: `--seed` is the image's.
_OPTION_NAMES = {"seed": "tome-seed", "use_rand": "rand"}
_CHOICES = {"yes": True, "no": False}


def add_image_arguments(parser: argparse.ArgumentParser, *, several_seeds: bool = False) -> None:
    """Add the prompt, the model and how to generate; with ``several_seeds`` more than one seed."""
    group = parser.add_argument_group("the image")
    group.add_argument("--prompt", action="append", metavar="TEXT",
                       help="what to generate, for a DiTPipeline a class by name or number; repeat it for more images")
    group.add_argument("--negative-prompt", metavar="TEXT", help="what to keep out of the image")
    add_model_argument(group, class_labels=True)
    group.add_argument("--steps", type=int, metavar="N", help="denoising steps (default: 20; bundled models: 10)")
    group.add_argument("--guidance-scale", type=float, metavar="X",
                       help="default: 7.5, for a DiTPipeline 4; the bundled models: 1.5")
    group.add_argument("--scheduler", choices=list(SCHEDULERS), metavar="NAME",
                       help=f"{', '.join(SCHEDULERS)} (default: the model's own)")
    add_size_arguments(group)
    if several_seeds:
        group.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N",
                           help="seeds that every prompt is generated with (default: 0)")
    else:
        group.add_argument("--seed", type=int, default=0, metavar="N", help="image i uses seed N + i (default: 0)")
    group.add_argument("--dtype", choices=list(DTYPES), default="float32", help="default: float32")
    group.add_argument("--xformers", action="store_true", help="memory efficient attention; needs a GPU")
    group.add_argument("--chunked-attention", action="store_true",
                       help="exact attention in less memory and time on a CPU; not together with --xformers")


def add_model_argument(group: Any, *, class_labels: bool = False) -> None:
    """Add which pipeline to use; with ``class_labels`` DiTPipelines are accepted, too."""
    dit = f", '{BUNDLED_DIT}' (its small transformer that generates classes)" if class_labels else ""
    group.add_argument("--model", default=BUNDLED, metavar="MODEL",
                       help="a folder in ppdiffusers' or diffusers' format, a hub name such as "
                       f"runwayml/stable-diffusion-v1-5, '{BUNDLED}' (the default: the small text-to-image model of "
                       f"this package){dit}")


def add_size_arguments(group: Any) -> None:
    """Add the size of images."""
    for name in ("height", "width"):
        group.add_argument(f"--{name}", type=int, metavar="PIXELS", help="default: the model's native size")


def add_controlnet_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a ControlNet and the edges that guide it."""
    group = parser.add_argument_group("ControlNet")
    add_controlnet_argument(group)
    group.add_argument("--image", type=Path, metavar="FILE",
                       help="a photo whose Canny edges guide the image; transparent parts count as white, or "
                       "as black where the rest is light")
    group.add_argument("--control-image", type=Path, metavar="FILE",
                       help="edges in white on black, used as they are; transparency counts as black")
    group.add_argument("--fit", choices=list(FIT_MODES), default=CROP,
                       help=f"another aspect ratio: crop to the middle, pad with black, or stretch (default: {CROP})")
    group.add_argument("--canny-low", type=float, default=100, metavar="X", help="lower threshold (default: 100)")
    group.add_argument("--canny-high", type=float, default=200, metavar="X", help="upper threshold (default: 200)")
    group.add_argument("--controlnet-scale", type=float, default=1.0, metavar="X",
                       help="how strongly the edges guide (default: 1)")


def add_controlnet_argument(group: Any) -> None:
    """Add which ControlNet to use."""
    group.add_argument("--controlnet", metavar="MODEL",
                       help=f"a folder, a hub name such as lllyasviel/sd-controlnet-canny, or '{BUNDLED}' (the default "
                       "for the bundled model with edges)")


def add_tome_arguments(parser: argparse.ArgumentParser, *, ratio: bool = False) -> Any:
    """Add the settings of ``ToMeConfig``, with ``ratio`` also the ratio.

    Options that the user omits set no attribute. The result is the group, for more arguments.
    """
    group = parser.add_argument_group("token merging")
    group.add_argument("--config", metavar="FILE", help="settings to start from: a JSON file, or a preset ("
                       f"{', '.join(presets())}); other options replace them")
    if ratio:
        group.add_argument("--ratio", type=float, metavar="X", help="fraction of the tokens to merge, below 0.75 for a "
                           "2x2 stride; 0 for none (default: 0.5)")
    for field in fields(ToMeConfig)[1:]:  # all but the ratio
        option = "--" + _OPTION_NAMES.get(field.name, field.name).replace("_", "-")
        destination = "tome_seed" if field.name == "seed" else field.name
        settings: dict[str, Any] = {"dest": destination, "default": argparse.SUPPRESS}
        settings["help"] = _read_descriptions()[field.name]
        if field.name == "method":
            settings |= {"choices": list(METHODS), "metavar": "NAME"}
        elif field.type == "bool":
            settings["action"] = argparse.BooleanOptionalAction
        elif field.type == "bool | None":
            settings |= {"type": _parse_choice, "nargs": "?", "const": True, "metavar": "yes|no|none"}
        else:
            kind, _, optional = str(field.type).partition(" | ")
            settings["metavar"] = "N" if kind == "int" else "X"
            number = int if kind == "int" else float
            settings["type"] = _accept_none(number) if "None" in optional else number
        group.add_argument(option, **settings)
    return group


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add where the results go."""
    group = parser.add_argument_group("the output")
    group.add_argument("--output", type=Path, default=Path("outputs"), metavar="FOLDER", help="default: outputs")
    group.add_argument("--overwrite", action="store_true", help="replace files that exist")


def _accept_none(number: type[float]) -> Callable[[str], float | None]:
    def parse(text: str) -> float | None:
        return None if text == "none" else number(text)

    parse.__name__ = f"{number.__name__} or none"  # argparse names the type in its errors
    return parse


def _parse_choice(text: str) -> bool | None:
    if text not in (*_CHOICES, "none"):
        raise argparse.ArgumentTypeError(f"invalid value: {text!r} (choose from yes, no, none)")
    return _CHOICES.get(text)


@cache
def _read_descriptions() -> dict[str, str]:
    """Read what ``apply_tome`` documents about each setting, without importing it, as that imports Paddle."""
    spec = find_spec("ppdiffusers_tome.api")
    assert spec is not None
    module = ast.parse(Path(str(spec.origin)).read_text(encoding="utf-8"))
    function = next(each for each in module.body if isinstance(each, ast.FunctionDef) and each.name == "apply_tome")
    section = (ast.get_docstring(function) or "").partition("Args:\n")[2].partition("\n\n")[0]
    descriptions: dict[str, str] = {}
    for names, text in re.findall(r"^    (\w[\w, ]*): (.*(?:\n      .*)*)", section, re.MULTILINE):
        plain = " ".join(text.split()).replace("``", "").replace("%", "%%").replace("None", "none")
        descriptions |= dict.fromkeys(names.split(", "), plain)
    return descriptions

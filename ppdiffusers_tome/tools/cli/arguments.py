"""The arguments that all commands that draw share. Knows no Paddle."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.presets import presets
from ppdiffusers_tome.settings.types import LEVELS, UNSET
from ppdiffusers_tome.tools.generation.edges import CROP, FIT_MODES
from ppdiffusers_tome.tools.generation.model_loader import DTYPES
from ppdiffusers_tome.tools.generation.model_sources import BUNDLED, BUNDLED_DIT
from ppdiffusers_tome.tools.generation.schedulers import SCHEDULERS


def add_image_arguments(parser: argparse.ArgumentParser, *, several_seeds: bool = False) -> None:
    """What to draw and with which model; one seed, or with ``several_seeds`` each prompt from several."""
    group = parser.add_argument_group("the picture")
    group.add_argument("--prompt", action="append", metavar="TEXT",
                       help="what to draw, with a DiTPipeline a class by name or number; repeat it for more pictures")
    group.add_argument("--negative-prompt", metavar="TEXT", help="what to keep out of the picture")
    add_model_argument(group, class_labels=True)
    group.add_argument("--steps", type=int, metavar="N", help="denoising steps (default: 20; bundled models: 10)")
    group.add_argument("--guidance-scale", type=float, metavar="X",
                       help="default: 7.5, for a DiTPipeline 4; the bundled models: 1.5")
    group.add_argument("--scheduler", choices=list(SCHEDULERS), metavar="NAME",
                       help=f"{', '.join(SCHEDULERS)} (default: the model's own)")
    add_size_arguments(group)
    if several_seeds:
        group.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N",
                           help="every prompt is drawn from each of them (default: 0)")
    else:
        group.add_argument("--seed", type=int, default=0, metavar="N", help="picture i uses seed N + i (default: 0)")
    group.add_argument("--dtype", choices=list(DTYPES), default="float32", help="default: float32")
    group.add_argument("--xformers", action="store_true", help="memory efficient attention; needs a GPU")
    group.add_argument("--chunked-attention", action="store_true",
                       help="exact attention in less memory and time on a CPU; not together with --xformers")


def add_model_argument(group: Any, *, class_labels: bool = False) -> None:
    """Which pipeline; with ``class_labels`` a DiTPipeline too."""
    bundled = f"'{BUNDLED}' (the default, the small text-to-image model that comes with this package)"
    if class_labels:
        bundled += f" or '{BUNDLED_DIT}' (a small transformer that comes with it and draws classes)"
    else:
        bundled = f"or {bundled}"
    group.add_argument("--model", default=BUNDLED, metavar="MODEL",
                       help="a folder in ppdiffusers' or diffusers' format, a hub name such as "
                       f"runwayml/stable-diffusion-v1-5, {bundled}")


def add_size_arguments(group: Any) -> None:
    """How large pictures are."""
    for name in ("height", "width"):
        group.add_argument(f"--{name}", type=int, metavar="PIXELS", help="default: the model's native size")


def add_controlnet_arguments(parser: argparse.ArgumentParser) -> None:
    """What holds the picture to given edges."""
    group = parser.add_argument_group("ControlNet")
    add_controlnet_argument(group)
    group.add_argument("--image", type=Path, metavar="FILE",
                       help="a photo; its Canny edges guide the picture. What is transparent in it counts as white, or "
                       "as black where the rest is light")
    group.add_argument("--control-image", type=Path, metavar="FILE",
                       help="edges in white on black, used as they are; what is transparent counts as black")
    group.add_argument("--fit", choices=list(FIT_MODES), default=CROP,
                       help="if the aspect ratios differ: crop to the middle, pad with black, or stretch "
                       f"(default: {CROP})")
    group.add_argument("--canny-low", type=float, default=100, metavar="X", help="lower threshold (default: 100)")
    group.add_argument("--canny-high", type=float, default=200, metavar="X", help="upper threshold (default: 200)")
    group.add_argument("--controlnet-scale", type=float, default=1.0, metavar="X",
                       help="how strongly the edges guide (default: 1)")


def add_controlnet_argument(group: Any) -> None:
    """Which ControlNet."""
    group.add_argument("--controlnet", metavar="MODEL",
                       help=f"a folder, a hub name such as lllyasviel/sd-controlnet-canny, or '{BUNDLED}' (which is "
                       "what the bundled model uses when edges are given)")


def add_tome_arguments(parser: argparse.ArgumentParser) -> Any:
    """How tokens merge, apart from the ratio; returns the group so that a command can add its own."""
    group = parser.add_argument_group("token merging")
    group.add_argument("--config", metavar="FILE", help="settings to start from: a JSON file, or a preset ("
                       f"{', '.join(presets())}); other options replace them")
    # None, and either of yes and no, may be meant: an option must be able to take back what --config says.
    def setting(option: str, **given: Any) -> None:
        group.add_argument(option, default=UNSET, **given)

    yes_or_no = argparse.BooleanOptionalAction
    setting("--method", choices=list(METHODS), metavar="NAME",
            help="what becomes of similar tokens (default: tome). "
            + "; ".join(f"{name}: {method.about}" for name, method in METHODS.items()))
    setting("--max-downsample", type=_or_none(int), metavar="LEVEL",
            help=f"merge down to this level: {', '.join(map(str, LEVELS))}, or none: the finest level only (default)")
    setting("--sx", type=int, metavar="N", help="stride in columns (default: 2)")
    setting("--sy", type=int, metavar="N", help="stride in rows (default: 2)")
    setting("--rand", action=yes_or_no, dest="use_rand", help="random destinations, or fixed ones (default: random)")
    setting("--merge-attn", action=yes_or_no, help="merge around self-attention (default: yes)")
    setting("--merge-crossattn", action=yes_or_no, help="merge around cross-attention too (default: no)")
    setting("--merge-mlp", action=yes_or_no, help="merge around the feed-forward layers too (default: no)")
    setting("--tome-seed", type=int, metavar="N", help="which random destinations (default: 0)")
    setting("--tile", type=_or_none(int), metavar="N",
            help="match within tiles of N by N tokens and one cell around, or none: all with all (default); "
            "16 is a good size")
    setting("--reuse-steps", type=int, metavar="N", help="keep a matching for N denoising steps (default: 1)")
    setting("--reuse-blocks", action=yes_or_no, help="blocks on one grid share their matching (default: no)")
    setting("--min-similarity", type=_or_none(float), metavar="X",
            help="never merge tokens whose cosine similarity is lower, -1 to 1, or none: no limit (default); the ratio "
            "is then the upper limit")
    setting("--st", type=int, metavar="N",
            help="stride in frames, for models that attend to all frames of a video at once (default: 1)")
    setting("--proportional", type=_or_none(_yes_or_no), nargs="?", const=True, metavar="yes|no|none",
            help="let merged tokens count in attention as often as they stand for tokens, or none: as the method does "
            "(default)")
    setting("--start", type=float, metavar="X", help="merge from this share of the denoising (default: 0)")
    setting("--end", type=float, metavar="X", help="and up to this one (default: 1)")
    return group


def _yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError
    return text == "yes"


def _or_none(number: Callable[[str], Any]) -> Callable[[str], Any]:
    """The type of an option that is a number, or yes or no, or ``none``."""

    def number_or_none(text: str) -> Any:
        return None if text == "none" else number(text)

    number_or_none.__name__ = f"{number.__name__.strip('_').replace('_', ' ')} or none"
    return number_or_none


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the results go."""
    group = parser.add_argument_group("the output")
    group.add_argument("--output", type=Path, default=Path("outputs"), metavar="FOLDER", help="default: outputs")
    group.add_argument("--overwrite", action="store_true", help="replace files that exist")

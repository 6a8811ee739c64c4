"""The arguments that commands share. Imports no Paddle.

A command's help has at most 60 lines, so a text here takes one, and rarely used settings are listed by name.
"""

import argparse
from pathlib import Path

from ppdiffusers_tome.machine import AUTO, PRECISIONS
from ppdiffusers_tome.tools.generation.models import PHOTOGRAPHS
from ppdiffusers_tome.tools.generation.settings import DTYPES, SCHEDULERS


def add_image_arguments(
    parser: argparse.ArgumentParser, *, several: bool = True, file: bool = False, seeds: bool = False
) -> None:
    """Add what an image depends on besides a ControlNet and token merging.

    There may be ``several`` prompts, also in a ``file``. With ``seeds`` each has all ``--seeds``, and ``seed`` is 0.
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
    if seeds:
        parser.set_defaults(seed=0)
        group.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N", help="of all prompts (default: 0)")
    else:
        of_which = "of the first image, the next has N + 1" if several else "of the image"
        group.add_argument("--seed", type=int, default=0, metavar="N", help=f"{of_which} (default: 0)")
    group.add_argument("--dtype", choices=list(DTYPES), default=DTYPES[0], metavar="NAME",
                       help=f"{', '.join(DTYPES)} (default: {DTYPES[0]})")
    either = group.add_mutually_exclusive_group()
    either.add_argument("--xformers", action="store_true", help="memory efficient attention; needs a GPU")
    either.add_argument("--compile", nargs="?", const=AUTO, choices=[AUTO, *PRECISIONS], metavar="PRECISION",
                        help="fastest; for a CPU with openvino: float32, bfloat16, int8 (default: bfloat16 if it can)")


def add_guide_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a ControlNet and the photo whose edges guide."""
    group = parser.add_argument_group("ControlNet")
    group.add_argument("--controlnet", metavar="MODEL", help="a folder or a hub name; in a clone controlnet")
    group.add_argument("--image", type=Path, metavar="FILE", help="a photo, whose edges guide")
    group.add_argument("--controlnet-scale", type=float, metavar="X", help="strength (default: 1)")


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add where the results go."""
    parser.add_argument("--output", type=Path, default=Path("outputs"), metavar="FOLDER", help="default: outputs")
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")

"""The settings of images, checked before loading. Imports no Paddle."""

import argparse
import math
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.combine import UNSET, combine_settings
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.text import shorten_repr
from ppdiffusers_tome.tools.generation.arguments import name_option
from ppdiffusers_tome.tools.generation.edges import read_photo_file
from ppdiffusers_tome.tools.generation.model_sources import ModelSource, find_controlnet, find_model
from ppdiffusers_tome.tools.generation.schedulers import SCHEDULERS

DEFAULT_PRESET = "balanced"  # the preset where no setting of merging is given
MAX_SEED = 2**62
SIZE_MULTIPLE = 8
_UNENCODABLE = re.compile("[\0\ud800-\udfff]")  # Python reads bytes of another encoding as halves of a character


def make_warm_up_config(tome: ToMeConfig | None) -> ToMeConfig | None:
    """Return settings for a warm-up of one step without warnings."""
    warm_up = tome and replace(tome, cache=0.0, start=0.0, end=1.0)
    return None if warm_up is None or warm_up.changes_nothing else warm_up


@dataclass(frozen=True)
class ImageSettings:
    """All that an image depends on besides its prompt."""

    model: ModelSource
    controlnet: ModelSource | None  # None for text-to-image
    photo: Path | None  # whose edges guide; None also where the command has edges of its own
    tome: ToMeConfig
    height: int | None  # in pixels; None for the model's native size
    width: int | None
    steps: int
    guidance_scale: float | None  # None for the default of the pipeline's class
    scheduler: str | None
    seed: int
    negative_prompt: str | None
    controlnet_scale: float
    dtype: str
    xformers: bool
    cpu_kernels: bool
    compile: str | None  # the precision, or None for models that are not compiled

    @property
    def defaults(self) -> list[str]:
        """The names of settings that are left to the model."""
        return [name for name in ("height", "width", "guidance_scale", "scheduler") if getattr(self, name) is None]

    @cached_property
    def photo_checksum(self) -> int | None:
        """Of the photo's file, as another one may have the name, or take its place."""
        return None if self.photo is None else zlib.crc32(self.photo.read_bytes())

    def describe_request(self, prompt: str, number: int) -> dict[str, Any]:
        """Return what was asked for as plain values; ``defaults`` are None."""
        names = ("negative_prompt", "height", "width", "steps", "guidance_scale", "dtype", "compile")
        folder = None if self.model.folder is None else zlib.crc32(os.path.abspath(self.model.folder).encode())
        return {
            "prompt": prompt, "seed": self.seed + number, **{name: getattr(self, name) for name in names},
            "model": self.model.label, "model_folder": folder,  # others may have the name, and nobody sees the path
            "controlnet": self.describe_control(), "scheduler": SCHEDULERS.get(str(self.scheduler)),
            "tome": None if self.tome.changes_nothing else self.tome.to_dict(),
        }  # fmt: skip

    def describe_control(self) -> dict[str, Any] | None:
        """Return the ControlNet and its photo as plain values, if any."""
        if self.controlnet is None:
            return None
        photo = None if self.photo is None else self.photo.name
        return {
            "model": self.controlnet.label, "scale": self.controlnet_scale, "photo": photo,
            "photo_checksum": self.photo_checksum,
        }  # fmt: skip


def parse_settings(args: argparse.Namespace, *, provides_edges: bool = False) -> ImageSettings:
    """Check the arguments, alone and together.

    Args:
        args: of ``generation.arguments``. Without ``ratio``, merging is not set here.
        provides_edges: True if edges for a ControlNet may come later.
    """
    for name in ("height", "width"):
        pixels = getattr(args, name)
        if pixels is not None and (pixels <= 0 or pixels % SIZE_MULTIPLE):
            nearest = max(SIZE_MULTIPLE, round(pixels / SIZE_MULTIPLE) * SIZE_MULTIPLE)
            raise UserError(f"--{name} {pixels} must be a multiple of {SIZE_MULTIPLE} above 0, such as {nearest}")
    model = find_model(args.model)
    steps = args.steps if args.steps is not None else model.steps
    if steps < 1:
        raise UserError(f"--steps {steps} must be 1 or more; 20 is usual")
    check_seed("--seed", args.seed)
    if args.negative_prompt is not None:
        check_text("--negative-prompt", args.negative_prompt)
    for name, scale, usual in (
        ("--controlnet-scale", args.controlnet_scale, "1"), ("--guidance-scale", args.guidance_scale, "7.5"),
    ):  # fmt: skip
        if scale is not None and not (math.isfinite(scale) and scale >= 0):
            raise UserError(f"{name} {scale} must be a finite number, 0 or more; {usual} is usual")
    controlnet, tome = _parse_controlnet(args, model, provides_edges), ToMeConfig(0.0)
    if args.image is not None:
        read_photo_file(args.image)  # or it would fail after the model was loaded
    if hasattr(args, "ratio"):  # else the command compares several settings
        tome = parse_tome_config(args)
        refuse_conflicts(args, [tome])
    return ImageSettings(
        model=model, controlnet=controlnet, photo=args.image, tome=tome, height=args.height, width=args.width,
        steps=steps, guidance_scale=args.guidance_scale, scheduler=args.scheduler, seed=args.seed,
        negative_prompt=args.negative_prompt,
        controlnet_scale=1.0 if args.controlnet_scale is None else args.controlnet_scale,
        dtype=args.dtype, xformers=args.xformers, cpu_kernels=args.cpu_kernels, compile=args.compile,
    )  # fmt: skip


def _parse_controlnet(args: argparse.Namespace, model: ModelSource, provides_edges: bool) -> ModelSource | None:
    """Return the ControlNet that was named, or the model's own where edges guide."""
    if args.image is None and not provides_edges:
        for option, value in (("--controlnet", args.controlnet), ("--controlnet-scale", args.controlnet_scale)):
            if value is not None:
                raise UserError(f"{option} needs the edges of a photo; give one with --image")
        return None
    name = model.controlnet if args.controlnet is None else args.controlnet
    if name is None and args.image is not None:
        raise UserError(
            "--image needs a ControlNet that fits the model; name one with --controlnet, which takes a pipeline of "
            "Stable Diffusion or SDXL and no other, such as a DiTPipeline"
        )
    return None if name is None else find_controlnet(name)


def check_prompts(prompts: Sequence[str] | None, default: Sequence[str] = ()) -> list[str]:
    """Return the prompts, of which none is blank, or the default ones."""
    prompts = list(default if prompts is None else prompts)
    for prompt in prompts:
        check_text("--prompt", prompt)
        if not prompt.strip():
            raise UserError(f"--prompt {prompt!r} is empty; say what to generate")
    return prompts


def check_text(name: str, text: Any) -> None:
    """Check that a text is one; errors call it ``name``."""
    if not isinstance(text, str) or _UNENCODABLE.search(text):
        raise UserError(
            f"{name} {shorten_repr(text)} must be text, without characters that no text has; bytes in another "
            "encoding than the terminal's become such: save a script as UTF-8"
        )


def parse_tome_config(args: argparse.Namespace) -> ToMeConfig:
    """Return the settings of a command with ``--ratio`` and ``--config``."""
    overrides = get_tome_overrides(args)
    if args.ratio is None:
        return combine_settings(args.config or (None if overrides else DEFAULT_PRESET), overrides)
    if args.config is not None:
        raise UserError(f"--ratio {args.ratio:g} and --config {args.config} both hold the ratio; give one of them")
    return combine_settings(None, overrides | {"ratio": args.ratio})


def refuse_conflicts(args: argparse.Namespace, configs: Sequence[ToMeConfig]) -> None:
    """Refuse options of merging where no settings merge, and settings that cannot be compiled."""
    if args.compile is not None and any(config.differs_by_step for config in configs):
        raise UserError(
            "--compile makes programs that do the same in every step; omit it, or --cache, --reuse-steps, --start, "
            "--end and ratios that change"
        )
    if all(config.ratio == 0 for config in configs):
        unused = [name_option(name) for name in get_tome_overrides(args) if not name.startswith("cache")]
        if unused:
            raise UserError(f"{unused[0]} has no effect without merging; give a ratio above 0, too, or omit it")


def get_tome_overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of token merging that are options, without the ratio."""
    attributes = {field.name: field.name for field in fields(ToMeConfig)} | {"seed": "tome_seed"}
    given = {name: getattr(args, attribute, UNSET) for name, attribute in attributes.items() if name != "ratio"}
    return {name: value for name, value in given.items() if value is not UNSET}


def check_seed(name: str, seed: int) -> None:
    """Check that Paddle and numpy take a seed; errors call it ``name``."""
    if not 0 <= seed <= MAX_SEED:
        raise UserError(f"{name} {seed} must be from 0 to 2**62")

"""The settings of images, checked before loading. Imports no Paddle."""

import argparse
import math
import zlib
from dataclasses import dataclass, fields
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ppdiffusers_tome.cpu.process import has_bfloat16
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.generation.edges import read_photo_file
from ppdiffusers_tome.tools.generation.model_sources import ModelSource, find_controlnet, find_model
from ppdiffusers_tome.tools.generation.prompts import check_text
from ppdiffusers_tome.tools.generation.schedulers import SCHEDULERS
from ppdiffusers_tome.tools.measure.system import has_only_cpu

MAX_SEED = 2**62
SIZE_MULTIPLE = 8


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
    compile: str | None  # the precision, or None for models that are not compiled

    @property
    def defaults(self) -> list[str]:
        """The names of settings that are left to the model."""
        return [name for name in ("height", "width", "guidance_scale", "scheduler") if getattr(self, name) is None]

    @cached_property
    def photo_checksum(self) -> int | None:
        """The checksum of the photo's file; another may take its name."""
        return None if self.photo is None else zlib.crc32(self.photo.read_bytes())

    def describe(self) -> dict[str, Any]:
        """Return what images share besides merging as plain values; ``defaults`` are None."""
        others = ("model", "controlnet", "photo", "tome", "seed", "controlnet_scale")
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in others}
        scheduler = SCHEDULERS.get(str(self.scheduler))
        return {**self.model.describe(), "controlnet": self._describe_control(), **own, "scheduler": scheduler}

    def describe_image(self, prompt: str, number: int) -> dict[str, Any]:
        """Return all that was asked for of an image as plain values."""
        tome = None if self.tome.changes_nothing else self.tome.to_dict()
        return {"prompt": prompt, "seed": self.seed + number, "tome": tome, **self.describe()}

    def _describe_control(self) -> dict[str, Any] | None:
        if self.controlnet is None:
            return None
        photo = {"photo": self.photo and self.photo.name, "photo_checksum": self.photo_checksum}
        return {**self.controlnet.describe(), "scale": self.controlnet_scale, **photo}


def parse_settings(args: argparse.Namespace, *, provides_edges: bool = False) -> ImageSettings:
    """Check the arguments, alone and together, and return settings without merging.

    Args:
        args: of ``generation.arguments``.
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
    controlnet = _parse_controlnet(args, model, provides_edges)
    if args.image is not None:
        read_photo_file(args.image)  # or it would fail after the model was loaded
    settings = ImageSettings(
        model=model, controlnet=controlnet, photo=args.image, tome=ToMeConfig(0.0), height=args.height,
        width=args.width, steps=steps, guidance_scale=args.guidance_scale, scheduler=args.scheduler, seed=args.seed,
        negative_prompt=args.negative_prompt,
        controlnet_scale=1.0 if args.controlnet_scale is None else args.controlnet_scale,
        dtype=args.dtype, xformers=args.xformers, compile=args.compile,
    )  # fmt: skip
    check_device(settings, "cpu" if has_only_cpu() else None)
    return settings


def check_device(settings: ImageSettings, device: str | None) -> None:
    """Refuse what a device does not have; None is not known yet."""
    dtype = settings.dtype
    if settings.compile is not None and (device not in (None, "cpu") or dtype != "float32"):
        here = "" if device is None else f" on {device}"
        raise UserError(f"--compile is for --dtype float32 on a CPU, and this is {dtype}{here}; omit it")
    if device == "cpu" and (settings.xformers or dtype != "float32"):
        raise UserError(
            f"{'--xformers' if settings.xformers else f'--dtype {dtype}'} needs a GPU: Paddle's CPU has no kernels for "
            "it; use --dtype float32 without --xformers, or a GPU with paddlepaddle-gpu"
        )
    if settings.compile is not None and find_spec("openvino") is None:
        raise UserError("--compile needs openvino, which is not installed: pip install 'openvino>=2026.4,<2027'")
    if settings.compile == "bfloat16" and not has_bfloat16():
        raise UserError("--compile bfloat16 needs a processor that computes in it (AMX or AVX-512 BF16); give float32")


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


def check_seed(name: str, seed: int) -> None:
    """Check that Paddle and numpy take a seed; errors call it ``name``."""
    if not 0 <= seed <= MAX_SEED:
        raise UserError(f"{name} {seed} must be from 0 to 2**62")

"""Options of ``generate --prompts``. Imports no Paddle."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.export.requirements import installed_version
from ppdiffusers_tome.tools.generation.edges import EdgeSource
from ppdiffusers_tome.tools.generation.settings import Settings, parse_settings

STOP, SKIP = "stop", "skip"  # at a line of which no image can be generated
_PACKAGES = ("ppdiffusers-tome", "ppdiffusers", "paddlepaddle", "paddlepaddle-gpu")


@dataclass(frozen=True)
class BatchOptions:
    """The options of ``generate --prompts``, as its help describes them.

    ``settings`` are those that lines can override, ``controlnet`` is the name that was given, and ``canny`` holds the
    lower and the upper threshold.
    """

    prompts: Path
    output: Path
    settings: Settings
    controlnet: str | None
    canny: tuple[float, float]
    fit: str
    batch_size: int
    images_per_folder: int
    image_root: Path | None
    on_error: str
    overwrite: bool

    @classmethod
    def from_arguments(cls, args: argparse.Namespace) -> BatchOptions:
        """Check the arguments; raise a ``UserError`` if one cannot be used."""
        if args.prompt:
            raise UserError("--prompt and --prompts were both given; write all prompts into the file")
        batch_size, images_per_folder = args.batch_size, args.images_per_folder
        batch_size = 1 if batch_size is None else batch_size
        images_per_folder = 5000 if images_per_folder is None else images_per_folder
        if batch_size < 1:
            raise UserError(f"--batch-size {batch_size} must be 1 or more")
        if images_per_folder < 1:
            raise UserError(f"--images-per-folder {images_per_folder} must be 1 or more; 5000 is usual")
        if args.image_root is not None and not os.path.isdir(args.image_root):  # Path raises at names too long
            raise UserError(f"--image-root {args.image_root} is not a folder; give the one with the images")
        # A ControlNet may be named for lines that bring their own edges.
        settings = parse_settings(args, args.ratio, provides_edges=True)
        return cls(
            args.prompts, args.output, settings, args.controlnet, (args.canny_low, args.canny_high), args.fit,
            batch_size, images_per_folder, args.image_root, args.on_error or STOP, args.overwrite,
        )  # fmt: skip

    def make_edge_source(self, name: str, option: str) -> EdgeSource:
        """Return the edges of an image that a line names; ``option`` as in ``EdgeSource``."""
        return EdgeSource(self.prompts.parent / name, option, *self.canny, self.fit)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that all images depend on besides their lines, as JSON holds it."""
        settings = self.settings
        edges = None if settings.edges is None else [settings.edges.option, str(settings.edges.path)]
        identity = {
            **{name: value for name, value in vars(settings).items() if name != "seed"},
            "model": settings.model.name, "controlnet": self.controlnet, "tome": settings.tome.to_dict(),
            "edges": edges, "canny": self.canny, "fit": self.fit, "batch_size": self.batch_size,
            "images_per_folder": self.images_per_folder,
            "versions": {name: version for name in _PACKAGES if (version := installed_version(name)) is not None},
        }  # fmt: skip
        return json.loads(json.dumps(identity))

    @cached_property
    def checksum(self) -> str:
        """Checksum of the identity, which every image holds."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:16]

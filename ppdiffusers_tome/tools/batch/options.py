"""Options of ``generate --prompts``. Imports no Paddle."""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.export.requirements import installed_version
from ppdiffusers_tome.tools.generation.settings import Settings, parse_settings

STOP, SKIP = "stop", "skip"  # at a line of which no image can be generated
_PACKAGES = ("ppdiffusers-tome", "ppdiffusers", "paddlepaddle", "paddlepaddle-gpu")


@dataclass(frozen=True)
class BatchOptions:
    """The options of ``generate --prompts``, as its help describes them; lines can override ``settings``."""

    settings: Settings
    prompts: Path
    output: Path
    canny: tuple[float, float]
    batch_size: int
    on_error: str
    overwrite: bool

    @classmethod
    def from_arguments(cls, args: argparse.Namespace) -> BatchOptions:
        """Check the arguments; raise a ``UserError`` if one cannot be used."""
        if args.prompt:
            raise UserError("--prompt and --prompts were both given; write all prompts into the file")
        batch_size = 1 if args.batch_size is None else args.batch_size
        if batch_size < 1:
            raise UserError(f"--batch-size {batch_size} must be 1 or more")
        # A ControlNet may be named for lines that bring their own edges.
        settings, canny = parse_settings(args, args.ratio, provides_edges=True), (args.canny_low, args.canny_high)
        return cls(settings, args.prompts, args.output, canny, batch_size, args.on_error or STOP, args.overwrite)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that all images depend on besides their lines, as JSON holds it."""
        settings = self.settings
        identity = {
            **{name: value for name, value in vars(settings).items() if name != "seed"},
            "model": settings.model.name, "controlnet": settings.controlnet and settings.controlnet.name,
            "edges": settings.edges and [settings.edges.option, str(settings.edges.path)], "canny": self.canny,
            "tome": settings.tome.to_dict(), "batch_size": self.batch_size,
            "versions": {name: version for name in _PACKAGES if (version := installed_version(name)) is not None},
        }  # fmt: skip
        return json.loads(json.dumps(identity))

    @cached_property
    def checksum(self) -> str:
        """Checksum of the identity, which every image holds."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:16]

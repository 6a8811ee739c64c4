"""Options of ``generate --prompts``. Imports no Paddle."""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.export.requirements import installed_version
from ppdiffusers_tome.tools.generation.edges import EdgeSource
from ppdiffusers_tome.tools.generation.settings import Settings, parse_settings

STOP, SKIP = "stop", "skip"  # at a line of which no image can be generated
_PACKAGES = ("ppdiffusers-tome", "ppdiffusers", "paddlepaddle", "paddlepaddle-gpu")
_NOT_OF_IMAGES = {"prompts", "output", "settings", "on_error", "overwrite"}


@dataclass(frozen=True)
class BatchOptions:
    """The options of ``generate --prompts``, as its help describes them; lines can override ``settings``."""

    settings: Settings
    prompts: Path
    output: Path
    canny_low: float
    canny_high: float
    overwrite: bool
    controlnet: str | None = None
    batch_size: int = 1
    on_error: str = STOP

    @classmethod
    def from_arguments(cls, args: argparse.Namespace) -> BatchOptions:
        """Check the arguments; raise a ``UserError`` if one cannot be used."""
        if args.prompt:
            raise UserError("--prompt and --prompts were both given; write all prompts into the file")
        if args.batch_size is not None and args.batch_size < 1:
            raise UserError(f"--batch-size {args.batch_size} must be 1 or more")
        # A ControlNet may be named for lines that bring their own edges.
        settings = parse_settings(args, args.ratio, provides_edges=True)
        given = {field.name: getattr(args, field.name, None) for field in fields(cls)}
        return cls(**{**{name: value for name, value in given.items() if value is not None}, "settings": settings})

    def make_edge_source(self, name: str, option: str) -> EdgeSource:
        """Return the edges of an image that a line names; ``option`` as in ``EdgeSource``."""
        return EdgeSource(self.prompts.parent / name, option, self.canny_low, self.canny_high)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that all images depend on besides their lines, as JSON holds it."""
        settings, edges = self.settings, self.settings.edges
        identity = {
            **{name: value for name, value in vars(settings).items() if name != "seed"},
            **{field.name: getattr(self, field.name) for field in fields(self) if field.name not in _NOT_OF_IMAGES},
            "model": settings.model.name, "tome": settings.tome.to_dict(),
            "edges": None if edges is None else [edges.option, str(edges.path)],
            "versions": {name: version for name in _PACKAGES if (version := installed_version(name)) is not None},
        }  # fmt: skip
        return json.loads(json.dumps(identity))

    @cached_property
    def checksum(self) -> str:
        """Checksum of the identity, which every image holds."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:16]

"""What a run is asked for, as every rank knows it before it reads a line. Knows no Paddle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.batch.line import STOP, Line

# With a thousand folders, manifests, and what a thousand ranks keep beside them, a folder stays below 10,000 files.
IMAGES_PER_FOLDER = 5000


@dataclass(frozen=True)
class Run:
    """A run over a file of prompts.

    Attributes:
        prompts: the file.
        output: the folder.
        identity: all that the pictures depend on besides their lines, as plain values.
        tome: the settings that a line's ratio must go with.
        first_seed: lines without a seed have ``first_seed + number - 1``.
        batch_size: the most lines in a batch, 1 or more.
        images_per_folder: the most lines whose pictures are in one folder, 1 or more.
        folders_per_folder: the most folders of pictures in a folder, 1 or more.
        all_controlled: lines without edges of their own have those of the command line.
        all_negative: the same for negative prompts.
        image_root: a folder that must hold every picture that a line names; None lets a line name any that the
            user may read.
        on_error: ``stop`` or ``skip``, what follows a line that cannot be drawn.
        overwrite: what is in the folder and belongs to something else may be replaced.
    """

    prompts: Path
    output: Path
    identity: Mapping[str, Any] = field(default_factory=dict)
    tome: ToMeConfig = field(default_factory=ToMeConfig)
    first_seed: int = 0
    batch_size: int = 1
    images_per_folder: int = IMAGES_PER_FOLDER
    folders_per_folder: int = 1000
    all_controlled: bool = False
    all_negative: bool = False
    image_root: Path | None = None
    on_error: str = STOP
    overwrite: bool = False

    @cached_property
    def checksum(self) -> str:
        """What a picture keeps of the run it belongs to."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:16]

    def is_controlled(self, line: Line) -> bool:
        """Whether edges guide a line."""
        return self.all_controlled or line.control is not None

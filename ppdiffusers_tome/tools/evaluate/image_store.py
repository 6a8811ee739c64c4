"""The picture files of an evaluation: the unmerged ones always, which all others are compared with, others if asked."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.evaluate.configurations import UNMERGED, Configuration
from ppdiffusers_tome.tools.evaluate.samples import Case
from ppdiffusers_tome.tools.files import prepare_folder
from ppdiffusers_tome.tools.images import slugify, write_image

REFERENCES, PICTURES = "references", "pictures"


@dataclass(frozen=True)
class PictureStore:
    """Folders of pictures.

    Attributes:
        folder: of the evaluation.
        keeps_all: whether pictures of other configurations than the unmerged one are kept too.
    """

    folder: Path
    keeps_all: bool

    def prepare(self, configurations: Sequence[Configuration], cases: Sequence[Case], *, overwrite: bool) -> None:
        """Make sure, before any work starts, that pictures can be written.

        Raises:
            UserError: a folder cannot be made or written or is a link to another place, or a file exists and must not
                be replaced.
        """
        for configuration in configurations:
            if self._keeps(configuration.name):
                names, folder = [case.file_name for case in cases], self._folder(configuration.name)
                if not folder.resolve().is_relative_to(self.folder.resolve()):
                    raise UserError(f"{folder} leads out of --output {self.folder} by a link; remove the link")
                prepare_folder(folder, names, overwrite=overwrite)

    def path(self, configuration: str, case: Case) -> Path:
        """Where a picture is, or would be."""
        return self._folder(configuration) / case.file_name

    def misses(self, configuration: str, case: Case) -> bool:
        """Whether a picture is to be kept and is not there."""
        return self._keeps(configuration) and not self.path(configuration, case).is_file()

    def write(self, configuration: str, case: Case, picture: Image.Image) -> None:
        """Keep a picture, in place of one that was there."""
        if self._keeps(configuration):
            settings = {"configuration": configuration, "prompt": case.prompt, "seed": case.seed}
            write_image(self.path(configuration, case), picture, settings, overwrite=True)

    def read(self, configuration: str, case: Case) -> np.ndarray:
        """A picture that is there, uint8 ``[height, width, 3]``."""
        with Image.open(self.path(configuration, case)) as picture:
            return np.asarray(picture.convert("RGB"))

    def _keeps(self, configuration: str) -> bool:
        return self.keeps_all or configuration == UNMERGED

    def _folder(self, configuration: str) -> Path:
        if configuration == UNMERGED:
            return self.folder / REFERENCES
        # Names that differ in what a slug leaves out have folders of their own.
        return self.folder / PICTURES / f"{slugify(configuration)}-{zlib.crc32(configuration.encode()):08x}"

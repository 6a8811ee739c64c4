"""Going through prompts and seeds: all configurations take turns, and what is finished is written down at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.exporting.files import prepare_folder
from ppdiffusers_tome.tools.drawing.picture_files import slug, write_picture
from ppdiffusers_tome.tools.evaluation.configurations import UNMERGED, Configuration
from ppdiffusers_tome.tools.evaluation.ledger import EvaluationLedger, Result, Turn
from ppdiffusers_tome.tools.evaluation.measuring import Measurement, measure
from ppdiffusers_tome.tools.measuring.measure import Measured

if TYPE_CHECKING:
    from PIL import Image

WARM_UP_STEPS = 1
REFERENCES, PICTURES = "references", "pictures"


@dataclass(frozen=True)
class Hall:
    """Where the pictures hang: the unmerged ones always, which all others are compared with, the others if asked.

    Attributes:
        folder: of the evaluation.
        keeps_all: whether pictures of other configurations are kept too.
    """

    folder: Path
    keeps_all: bool

    def prepare(self, configurations: Sequence[Configuration], turns: Sequence[Turn], *, overwrite: bool) -> None:
        """Make sure, before any work starts, that pictures can be written.

        Raises:
            UserError: a folder cannot be made or written or is a link to another place, or a file exists and must not
                be replaced.
        """
        for configuration in configurations:
            if self._keeps(configuration.name):
                names, folder = [turn.file_name for turn in turns], self._folder(configuration.name)
                if not folder.resolve().is_relative_to(self.folder.resolve()):
                    raise UserError(f"{folder} leads out of --output {self.folder} by a link; remove the link")
                prepare_folder(folder, names, overwrite=overwrite)

    def path(self, configuration: str, turn: Turn) -> Path:
        """Where a picture is, or would be."""
        return self._folder(configuration) / turn.file_name

    def holds(self, configuration: str, turn: Turn) -> bool:
        """Whether nothing is missing: a picture that is not kept cannot be."""
        return not self._keeps(configuration) or self.path(configuration, turn).is_file()

    def take(self, configuration: str, turn: Turn, picture: Image.Image) -> None:
        """Keep a picture, in place of one that was there."""
        if self._keeps(configuration):
            settings = {"configuration": configuration, "prompt": turn.prompt, "seed": turn.seed}
            write_picture(self.path(configuration, turn), picture, settings, overwrite=True)

    def look(self, configuration: str, turn: Turn) -> np.ndarray:
        """A picture that is there, uint8 ``[height, width, 3]``."""
        from PIL import Image

        with Image.open(self.path(configuration, turn)) as picture:
            return np.asarray(picture.convert("RGB"))

    def _keeps(self, configuration: str) -> bool:
        return self.keeps_all or configuration == UNMERGED

    def _folder(self, configuration: str) -> Path:
        return self.folder / REFERENCES if configuration == UNMERGED else self.folder / PICTURES / slug(configuration)


class Evaluation:
    """What is left to draw.

    A turn that is left begins with the unmerged picture, also where that is there from an earlier sitting: seconds are
    compared with those of the same minutes, not of another day. Likeness is always to the picture of the first
    sitting, which is kept. Who comes next after it changes from turn to turn.

    Args:
        pipe: the pipeline.
        draw: draws a turn's picture, with fewer steps where a number is given, and measures the call.
        configurations: the unmerged pipeline first.
        turns: what is drawn.
        ledger: what was drawn so far; pictures are added to it as they come.
        hall: where pictures are kept.
        judge: whether a picture ``[height, width, 3]`` shows what a prompt asks; None where it cannot tell.
        tell: called before every picture with what is drawn, for a progress bar.
    """

    def __init__(
        self,
        pipe: Any,
        draw: Callable[[Turn, int | None], Measured[Image.Image]],
        configurations: Sequence[Configuration],
        turns: Sequence[Turn],
        ledger: EvaluationLedger,
        hall: Hall,
        judge: Callable[[np.ndarray, str], bool | None],
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._pipe, self._draw, self._turns = pipe, draw, turns
        self._unmerged, *self._others = configurations
        self._ledger, self._hall, self._judge, self._tell = ledger, hall, judge, tell
        self._sitting = ledger.next_sitting

    @property
    def num_pictures(self) -> int:
        """How many are left to draw, warm-ups included."""
        left = self._left()
        return len(self._warm_ups(left)) + sum(1 + len(others) for _, _, others in left)

    def run(self) -> None:
        """Draw what is left.

        Raises:
            NothingToMergeError: the pipeline has nothing that merges with a configuration's settings.
        """
        left = self._left()
        for configuration in self._warm_ups(left):
            self._tell(f"warming up: {configuration.name}")
            configuration.put_on(self._pipe)
            self._draw(left[0][1], WARM_UP_STEPS)
        for number, turn, others in left:
            reference = self._reference(turn)
            first = number % len(others) if others else 0
            for configuration in [*others[first:], *others[:first]]:
                self._measure(configuration, turn, reference)

    def _left(self) -> list[tuple[int, Turn, list[Configuration]]]:
        """The turns that are not finished, with their numbers and who is left besides the unmerged pipeline."""
        left = []
        for number, turn in enumerate(self._turns):
            others = [configuration for configuration in self._others if not self._is_done(configuration, turn)]
            if others or not self._is_done(self._unmerged, turn):
                left.append((number, turn, others))
        return left

    def _is_done(self, configuration: Configuration, turn: Turn) -> bool:
        name = configuration.name
        return turn in self._ledger.results(name) and self._hall.holds(name, turn)

    def _warm_ups(self, left: list[tuple[int, Turn, list[Configuration]]]) -> list[Configuration]:
        """Who is going to draw: the first picture of anyone is slower than the next."""
        drawing = {configuration.name for _, _, others in left for configuration in others}
        return [self._unmerged, *(each for each in self._others if each.name in drawing)] if left else []

    def _reference(self, turn: Turn) -> np.ndarray:
        """Draw the unmerged picture, and return the one that all others of the turn are compared with."""
        was_there = self._is_done(self._unmerged, turn)
        drawn = self._measure(self._unmerged, turn, None, keep=not was_there)
        return self._hall.look(UNMERGED, turn) if was_there else np.asarray(drawn.picture)

    def _measure(
        self, configuration: Configuration, turn: Turn, reference: np.ndarray | None, *, keep: bool = True
    ) -> Measurement:
        """Draw a picture, keep it and write it down."""
        self._tell(f"{configuration.name}, seed {turn.seed}")
        drawn = measure(self._pipe, configuration, lambda: self._draw(turn, None), reference)
        if keep:
            self._hall.take(configuration.name, turn, drawn.picture)
        quality = drawn.quality
        self._ledger.add_result(Result(
            configuration.name, turn.prompt, turn.seed, self._sitting, drawn.seconds, drawn.block_seconds,
            drawn.denoising_peak_bytes, drawn.peak_bytes, psnr=None if quality is None else quality.psnr,
            ssim=None if quality is None else quality.ssim,
            obeys=self._judge(np.asarray(drawn.picture), turn.prompt),
        ))  # fmt: skip
        return drawn

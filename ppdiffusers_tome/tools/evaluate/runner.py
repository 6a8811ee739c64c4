"""Going through the cases: all configurations take turns, and what is finished is written down at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ppdiffusers_tome.tools.evaluate.configurations import UNMERGED, Configuration
from ppdiffusers_tome.tools.evaluate.image_store import PictureStore
from ppdiffusers_tome.tools.evaluate.ledger import EvaluationLedger
from ppdiffusers_tome.tools.evaluate.measurement import measure
from ppdiffusers_tome.tools.evaluate.samples import Case, Sample
from ppdiffusers_tome.tools.generation.results import GeneratedImage
from ppdiffusers_tome.tools.measure.rounds import in_turn

WARM_UP_STEPS = 1
STRETCH = 8  # pictures after an unmerged one whose seconds are compared with it


class Evaluation:
    """What is left to draw.

    A case that is left is drawn in stretches of ``STRETCH`` pictures. Each begins with the unmerged picture, also where
    that is there already: seconds are compared with those of the same minutes. Similarity is always to the first
    unmerged picture, which is kept. Who comes next after it changes from case to case.

    Args:
        pipe: the pipeline.
        draw: draws a case's picture, with fewer steps where a number is given, and measures the call.
        configurations: the unmerged pipeline first.
        cases: what is drawn.
        ledger: what was drawn so far; samples are added to it as they come.
        store: where pictures are kept.
        follows_prompt: whether a picture ``[height, width, 3]`` shows what a prompt asks; None where it cannot tell.
    """

    def __init__(
        self,
        pipe: Any,
        draw: Callable[[Case, int | None], GeneratedImage],
        configurations: Sequence[Configuration],
        cases: Sequence[Case],
        ledger: EvaluationLedger,
        store: PictureStore,
        follows_prompt: Callable[[np.ndarray, str], bool | None],
    ) -> None:
        self._pipe, self._draw, self._follows_prompt = pipe, draw, follows_prompt
        self._ledger, self._store, self._run = ledger, store, ledger.next_run
        self._unmerged, *others = configurations
        self._drawn = {
            each.name: {case for case in ledger.samples(each.name) if not store.misses(each.name, case)}
            for each in configurations
        }
        # The cases that are not finished, with their numbers and who is left besides the unmerged pipeline.
        self._left: list[tuple[int, Case, list[Configuration]]] = []
        for number, case in enumerate(cases):
            left = [each for each in others if case not in self._drawn[each.name]]
            if left or case not in self._drawn[UNMERGED]:
                self._left.append((number, case, left))
        # Who is going to draw: the first picture of anyone is slower than the next.
        drawing = {each.name for _, _, left in self._left for each in left}
        self._warm_ups = [self._unmerged, *(each for each in others if each.name in drawing)] if self._left else []

    @property
    def num_pictures(self) -> int:
        """How many there are to draw, warm-ups included."""
        return len(self._warm_ups) + sum(len(_stretches(left)) + len(left) for _, _, left in self._left)

    def run(self, progress: Callable[[str], None]) -> None:
        """Draw what is left.

        Args:
            progress: called before every picture with what is drawn.

        Raises:
            NothingToMergeError: the pipeline has nothing that merges with a configuration's settings.
        """
        for configuration in self._warm_ups:
            progress(f"warming up: {configuration.name}")
            configuration.apply(self._pipe)
            self._draw(self._left[0][1], WARM_UP_STEPS)
        for number, case, left in self._left:
            for stretch in _stretches(in_turn(left, number)):
                progress(f"{UNMERGED}, seed {case.seed}")
                reference = self._reference(case)
                for configuration in stretch:
                    progress(f"{configuration.name}, seed {case.seed}")
                    self._sample(configuration, case, reference)
                self._run += 1

    def _reference(self, case: Case) -> np.ndarray:
        """Draw the unmerged picture, and return the one that all others of the case are compared with."""
        kept = case in self._drawn[UNMERGED]
        drawn = self._sample(self._unmerged, case, None, keep=not kept)
        self._drawn[UNMERGED].add(case)
        return self._store.read(UNMERGED, case) if kept else np.asarray(drawn.image)

    def _sample(
        self, configuration: Configuration, case: Case, reference: np.ndarray | None, *, keep: bool = True
    ) -> GeneratedImage:
        """Draw a picture, keep it and write its figures down."""
        drawn = measure(self._pipe, configuration, lambda: self._draw(case, None), reference)
        if keep:
            self._store.write(configuration.name, case, drawn.image)
        drawn = replace(drawn, follows_prompt=self._follows_prompt(np.asarray(drawn.image), case.prompt))
        self._ledger.add_sample(Sample(configuration.name, case, self._run, drawn))
        return drawn


def _stretches(left: Sequence[Configuration]) -> list[Sequence[Configuration]]:
    """What is drawn after an unmerged picture each; one of nobody where that is all that is left."""
    return [left[start : start + STRETCH] for start in range(0, max(1, len(left)), STRETCH)]

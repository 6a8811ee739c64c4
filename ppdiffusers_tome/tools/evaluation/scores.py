"""The scores of configurations' pictures, all together: they need the files of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.evaluation.features import (
    CLIP_SCORE,
    Clip,
    Features,
    Inception,
    clip_score,
    frechet_distance,
    picture_files,
)

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.evaluation.ledger import Turn
    from ppdiffusers_tome.tools.evaluation.turns import Hall

_FEWEST = 2  # pictures that have a covariance


class Scoring:
    """Networks that score pictures, tried at once and loaded again when there are pictures.

    Between the two they are gone, or they would count as memory of the pipeline.

    Args:
        clip: folder of a CLIP model, or None.
        inception: what a network of Inception's features was saved as, or None.
        real: folder of real pictures, or None.
        num_pictures: how many each configuration is going to draw.

    Raises:
        UserError: a network cannot be loaded or does not fit, or there are too few pictures.
    """

    def __init__(self, clip: Path | None, inception: Path | None, real: Path | None, num_pictures: int) -> None:
        self._clip, self._inception = clip, inception
        self._files = [] if real is None else picture_files(real)
        if real is not None and len(self._files) < _FEWEST:
            raise UserError(f"--real {real} holds {len(self._files)} pictures; give a folder with {_FEWEST} or more")
        if real is not None and num_pictures < _FEWEST:
            raise UserError(f"--real needs {_FEWEST} pictures or more to compare; add prompts or --seeds")
        for network in self._networks():
            if self._files:
                network.of_images(self._files[:1])

    def scores(self, configurations: Iterable[str], turns: Sequence[Turn], hall: Hall) -> dict[str, dict[str, float]]:
        """The scores of every configuration's pictures, by configuration and name."""
        found: dict[str, dict[str, float]] = {configuration: {} for configuration in configurations}
        for network in self._networks():
            real = network.of_images(self._files) if self._files else None
            prompts = network.of_prompts([turn.prompt for turn in turns]) if isinstance(network, Clip) else None
            for configuration, scores in found.items():
                drawn = network.of_images([hall.path(configuration, turn) for turn in turns])
                scores.update(_scores(network, drawn, prompts, real))
        return found

    def _networks(self) -> Iterable[Features]:
        """The networks, one loaded at a time."""
        if self._clip is not None:
            yield Clip(self._clip)
        if self._inception is not None:
            yield Inception(self._inception)


def _scores(
    network: Features, drawn: np.ndarray, prompts: np.ndarray | None, real: np.ndarray | None
) -> dict[str, float]:
    found = {} if prompts is None else {CLIP_SCORE: clip_score(drawn, prompts)}
    return found if real is None else {**found, network.distance_name: frechet_distance(drawn, real)}

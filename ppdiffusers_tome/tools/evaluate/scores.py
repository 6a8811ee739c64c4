"""The scores of configurations' pictures that need networks, and the files of all pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.evaluate.features import (
    CLIP_SCORE,
    Clip,
    Features,
    Inception,
    clip_score,
    frechet_distance,
    picture_files,
)
from ppdiffusers_tome.tools.evaluate.image_store import PictureStore
from ppdiffusers_tome.tools.evaluate.samples import Case

_INCEPTION_ENDINGS = (".pdmodel", ".pdiparams", ".json")
_CLIP_FILES = ("config.json", "preprocessor_config.json", "vocab.json", "merges.txt")
_FEWEST = 2  # pictures that have a covariance


@dataclass(frozen=True)
class Networks:
    """The networks that score pictures, and the real pictures; each may be None.

    They are loaded only for as long as they are needed, or they would count as memory of the pipeline.

    Attributes:
        clip: folder of a CLIP model.
        inception: what the Inception network was saved as, with or without an ending.
        real: folder of real pictures.
    """

    clip: Path | None
    inception: Path | None
    real: Path | None

    def __bool__(self) -> bool:
        return self.clip is not None or self.inception is not None

    def check_files(self) -> None:
        """What can be seen from outside fits.

        Raises:
            UserError: it does not.
        """
        if self.clip is not None:
            missing = [name for name in _CLIP_FILES if not (self.clip / name).is_file()]
            if missing:
                raise UserError(
                    f"--clip {self.clip} has no {', '.join(missing)}; give a folder that holds what CLIPModel and "
                    "CLIPProcessor of paddlenlp write with save_pretrained"
                )
        if self.inception is not None:
            if self.real is None:
                raise UserError("--inception measures the distance to real pictures; give a folder of them with --real")
            weights = _without_ending(self.inception).with_name(f"{_without_ending(self.inception).name}.pdiparams")
            if not weights.is_file():
                raise UserError(
                    f"--inception {self.inception} needs {weights}, which is not there; give a network that "
                    "paddle.jit.save wrote"
                )
        if self.real is not None:
            if not self:
                raise UserError("--real needs a network whose features are compared; add --clip or --inception")
            if not self.real.is_dir():
                raise UserError(f"--real {self.real} is not a folder; give one with real pictures")

    def try_out(self, num_pictures: int) -> None:
        """Load each network once, so that one that does not fit is refused before anything is drawn.

        Args:
            num_pictures: how many each configuration is going to draw.

        Raises:
            UserError: a network cannot be loaded or does not fit, or there are too few pictures.
        """
        files = self._real_files()
        if self.real is not None and len(files) < _FEWEST:
            raise UserError(f"--real {self.real} holds {len(files)} pictures; give a folder with {_FEWEST} or more")
        if self.real is not None and num_pictures < _FEWEST:
            raise UserError(f"--real needs {_FEWEST} pictures or more to compare; add prompts or --seeds")
        for network in self._load():
            if files:
                network.of_images(files[:1])

    def scores(
        self, configurations: Iterable[str], cases: Sequence[Case], store: PictureStore
    ) -> dict[str, dict[str, float]]:
        """The scores of every configuration's pictures, by configuration and name."""
        scores: dict[str, dict[str, float]] = {configuration: {} for configuration in configurations}
        for network in self._load():
            real = network.of_images(self._real_files()) if self.real is not None else None
            prompts = network.of_prompts([case.prompt for case in cases]) if isinstance(network, Clip) else None
            for configuration, own in scores.items():
                drawn = network.of_images([store.path(configuration, case) for case in cases])
                if prompts is not None:
                    own[CLIP_SCORE] = clip_score(drawn, prompts)
                if real is not None:
                    own[network.distance_name] = frechet_distance(drawn, real)
        return scores

    def _load(self) -> Iterator[Features]:
        """The networks, one loaded at a time."""
        if self.clip is not None:
            yield Clip(self.clip)
        if self.inception is not None:
            yield Inception(_without_ending(self.inception))

    def _real_files(self) -> list[Path]:
        return [] if self.real is None else picture_files(self.real)


def _without_ending(path: Path) -> Path:
    return path.with_suffix("") if path.suffix in _INCEPTION_ENDINGS else path

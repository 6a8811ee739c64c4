"""Networks whose features score pictures: CLIP score, and the Frechet distance to real pictures, of which FID is one.

Networks are folders and files on this machine. Nothing here ever fetches one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from ppdiffusers_tome.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

T = TypeVar("T")

CLIP_SCORE = "CLIP score"
INCEPTION_SIDE, INCEPTION_FEATURES = 299, 2048
_BATCH = 16


class Features(Protocol):
    """A network whose image features are compared; ``distance_name`` is what their Frechet distance is called."""

    distance_name: str

    def of_images(self, paths: Sequence[Path]) -> np.ndarray:
        """Features of picture files, float64 ``[pictures, features]``."""


class Clip:
    """A CLIP model of paddlenlp.

    Args:
        folder: as ``CLIPModel`` and ``CLIPProcessor`` write it with ``save_pretrained``.

    Raises:
        UserError: it cannot be loaded.
    """

    distance_name = "Frechet distance (CLIP features)"

    def __init__(self, folder: Path) -> None:
        from paddlenlp.transformers import CLIPModel, CLIPProcessor

        try:
            self._model = CLIPModel.from_pretrained(str(folder))
            self._processor = CLIPProcessor.from_pretrained(str(folder))
        except Exception as error:  # whatever paddlenlp and Paddle came up with
            raise UserError(_not_loaded("--clip", folder, error)) from error
        self._model.eval()

    def of_images(self, paths: Sequence[Path]) -> np.ndarray:
        def features_of(pictures: list[Image.Image]) -> Any:
            pixels = self._processor(images=pictures, return_tensors="pd")["pixel_values"]
            return self._model.get_image_features(pixel_values=pixels)

        return _in_batches(_pictures(paths), features_of)

    def of_prompts(self, prompts: Sequence[str]) -> np.ndarray:
        """Features of prompts, float64 ``[prompts, features]``; what is too long for the model is cut off."""
        longest = self._model.config.text_config.max_position_embeddings

        def features_of(words: list[str]) -> Any:
            given = self._processor(
                text=words, return_tensors="pd", padding="max_length", max_length=longest, truncation=True
            )
            return self._model.get_text_features(input_ids=given["input_ids"])

        return _in_batches(prompts, features_of)


class Inception:
    """The Inception network that FID is defined on, saved with ``paddle.jit.save``.

    Pictures are resized as pytorch-fid does: bilinearly, without smoothing.

    Args:
        file: what it was saved as, without an ending. It takes pictures ``[batch, 3, 299, 299]``, float32 RGB
            in [0, 1], and gives ``[batch, 2048]``, the features behind the last pooling.

    Raises:
        UserError: it cannot be loaded.
    """

    distance_name = "FID"

    def __init__(self, file: Path) -> None:
        import paddle

        self._file = file
        try:
            self._network = paddle.jit.load(str(file))
        except Exception as error:  # whatever Paddle came up with
            raise UserError(_not_loaded("--inception", file, error)) from error
        self._network.eval()

    def of_images(self, paths: Sequence[Path]) -> np.ndarray:
        import paddle
        from paddle.nn.functional import interpolate

        side = (INCEPTION_SIDE, INCEPTION_SIDE)

        def features_of(pictures: list[Image.Image]) -> Any:
            pixels = [np.asarray(picture, np.float32).transpose(2, 0, 1) / 255 for picture in pictures]
            batches = [paddle.to_tensor(each).unsqueeze(0) for each in pixels]  # of one, as sizes differ
            resized = [interpolate(each, side, mode="bilinear", align_corners=False) for each in batches]
            return self._network(paddle.concat(resized))

        try:
            features = _in_batches(_pictures(paths), features_of)
        except (ValueError, RuntimeError) as error:  # another input than it was made for
            raise UserError(
                f"--inception {self._file} cannot take [batch, 3, {INCEPTION_SIDE}, {INCEPTION_SIDE}] "
                f"({' '.join(str(error).split())[-200:]}); save it for that input"
            ) from error
        if features.ndim != 2 or features.shape[1] != INCEPTION_FEATURES:
            raise UserError(
                f"--inception {self._file} gives features of shape {list(features.shape)}; FID needs "
                f"[pictures, {INCEPTION_FEATURES}], those behind Inception's last pooling"
            )
        return features


def clip_score(images: np.ndarray, prompts: np.ndarray) -> float:
    """100 times the cosine of each picture and its prompt, 0 where it is negative; the mean.

    Args:
        images, prompts: features ``[pictures, features]``, row by row what belongs together.
    """
    cosines = (images * prompts).sum(1) / (np.linalg.norm(images, axis=1) * np.linalg.norm(prompts, axis=1))
    return float(100 * np.maximum(cosines, 0).mean())


def frechet_distance(one: np.ndarray, other: np.ndarray) -> float:
    """The Frechet distance of two normal distributions with the means and covariances of two sets of features.

    ``|m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2))``. The trace of that root is the sum of the singular values of
    ``R1 R2'`` where ``R' R`` is a covariance, which is exact also with fewer pictures than features, where the root
    itself is ill-conditioned.

    Args:
        one, other: ``[pictures, features]``, two pictures or more each.
    """
    spreads: list[np.ndarray] = []
    for features in (one, other):
        centred = (features - features.mean(0)) / np.sqrt(len(features) - 1)
        spreads.append(np.asarray(np.linalg.qr(centred, mode="r")))
    first, second = spreads
    shared = np.linalg.svd(first @ second.T, compute_uv=False).sum()
    apart = ((one.mean(0) - other.mean(0)) ** 2).sum()
    return float(max(apart + (first**2).sum() + (second**2).sum() - 2 * shared, 0.0))


def picture_files(folder: Path) -> list[Path]:
    """The pictures in a folder and the folders in it, in the order of their names."""
    endings = {".png", ".jpg", ".jpeg", ".webp", ".bmp"}
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in endings and path.is_file())


def _pictures(paths: Sequence[Path]) -> Iterator[Image.Image]:
    from PIL import Image

    for path in paths:
        try:
            with Image.open(path) as picture:
                yield picture.convert("RGB")
        except OSError as error:
            raise UserError(f"{path} cannot be read as a picture ({error}); take it out of its folder") from error


def _in_batches(items: Iterable[T], features_of: Callable[[list[T]], Any]) -> np.ndarray:
    """Features of many pictures or prompts, a few at a time, so that they need not fit in memory together."""
    import paddle

    remaining, features = iter(items), []
    with paddle.no_grad():
        while batch := list(islice(remaining, _BATCH)):
            features.append(features_of(batch).numpy())
    return np.concatenate(features).astype(np.float64)


def _not_loaded(option: str, path: Path, error: Exception) -> str:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return f"{option} {path} could not be loaded; check that its files are complete ({type(error).__name__}: {reason})"

"""Score the images of ``ppdiffusers-tome compare`` by CLIP score and FID.

    python examples/quality/score_images.py outputs/compared --clip clip-vit-large-patch14 \\
        --inception inception --real imagenet-val

It writes OUTPUT/scores.json and prints a table: one row per configuration. Networks are folders and files on this
machine; nothing is downloaded. See docs/en/guides/compare.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ppdiffusers_tome.tools.compare.samples import Case
from ppdiffusers_tome.tools.images import read_image

if TYPE_CHECKING:
    from PIL import Image

T = TypeVar("T")

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
INCEPTION_SIDE, INCEPTION_FEATURES = 299, 2048
_BATCH = 16


class Clip:
    """A CLIP model of paddlenlp.

    Args:
        folder: as ``CLIPModel`` and ``CLIPProcessor`` write it with ``save_pretrained``.

    Raises:
        SystemExit: it cannot be loaded.
    """

    def __init__(self, folder: Path) -> None:
        from paddlenlp.transformers import CLIPModel, CLIPProcessor

        try:
            self._model = CLIPModel.from_pretrained(str(folder))
            self._processor = CLIPProcessor.from_pretrained(str(folder))
        except Exception as error:  # paddlenlp and Paddle raise many types
            raise SystemExit(_describe_error("--clip", folder, error)) from error
        self._model.eval()

    def embed_images(self, paths: Sequence[Path]) -> np.ndarray:
        """Return features of image files, float64 ``[images, features]``."""

        def embed(images: list[Image.Image]) -> Any:
            pixels = self._processor(images=images, return_tensors="pd")["pixel_values"]
            return self._model.get_image_features(pixel_values=pixels)

        return _run_in_batches(_read_images(paths), embed)

    def embed_prompts(self, prompts: Sequence[str]) -> np.ndarray:
        """Return features of prompts, float64 ``[prompts, features]``; long prompts are truncated."""
        max_length = self._model.config.text_config.max_position_embeddings

        def embed(texts: list[str]) -> Any:
            inputs = self._processor(
                text=texts, return_tensors="pd", padding="max_length", max_length=max_length, truncation=True
            )
            return self._model.get_text_features(input_ids=inputs["input_ids"])

        return _run_in_batches(prompts, embed)


class Inception:
    """The Inception network that FID is defined on, saved with ``paddle.jit.save``.

    Images are resized as in pytorch-fid: bilinearly, without smoothing.

    Args:
        file: its path without an ending. It takes images ``[batch, 3, 299, 299]``, float32 RGB
            in [0, 1], and gives ``[batch, 2048]``, the features behind the last pooling.

    Raises:
        SystemExit: it cannot be loaded.
    """

    def __init__(self, file: Path) -> None:
        import paddle

        self._file = file
        try:
            self._network = paddle.jit.load(str(file))
        except Exception as error:  # Paddle raises many types
            raise SystemExit(_describe_error("--inception", file, error)) from error
        self._network.eval()

    def embed_images(self, paths: Sequence[Path]) -> np.ndarray:
        """Return features of image files, float64 ``[images, 2048]``."""
        import paddle
        from paddle.nn.functional import interpolate

        side = (INCEPTION_SIDE, INCEPTION_SIDE)

        def embed(images: list[Image.Image]) -> Any:
            pixels = [np.asarray(image, np.float32).transpose(2, 0, 1) / 255 for image in images]
            batches = [paddle.to_tensor(image).unsqueeze(0) for image in pixels]  # of one, as sizes differ
            resized = [interpolate(batch, side, mode="bilinear", align_corners=False) for batch in batches]
            return self._network(paddle.concat(resized))

        try:
            features = _run_in_batches(_read_images(paths), embed)
        except (ValueError, RuntimeError) as error:  # it was saved for another input
            raise SystemExit(
                f"--inception {self._file} cannot take [batch, 3, {INCEPTION_SIDE}, {INCEPTION_SIDE}] "
                f"({' '.join(str(error).split())[-200:]}); save it for that input"
            ) from error
        if features.ndim != 2 or features.shape[1] != INCEPTION_FEATURES:
            raise SystemExit(
                f"--inception {self._file} gives features of shape {list(features.shape)}; FID needs "
                f"[images, {INCEPTION_FEATURES}], those behind Inception's last pooling"
            )
        return features


def compute_clip_score(images: np.ndarray, prompts: np.ndarray) -> float:
    """Return 100 times the mean cosine of images and prompts.

    Args:
        images, prompts: features ``[images, features]`` of an image and of its prompt. Negative cosines count as 0.
    """
    cosines = (images * prompts).sum(1) / (np.linalg.norm(images, axis=1) * np.linalg.norm(prompts, axis=1))
    return float(100 * np.maximum(cosines, 0).mean())


def compute_frechet_distance(first: np.ndarray, second: np.ndarray) -> float:
    """Return the Frechet distance of two sets of features.

    It is ``|m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2))`` of the means and covariances. The trace of the root is the sum
    of the singular values of ``R1 R2'``, where ``C = R' R``. That is exact even with fewer images than features, where
    the root is ill-conditioned.

    Args:
        first, second: ``[images, features]``, at least two images in each.
    """
    roots = []
    for features in (first, second):
        centred = (features - features.mean(0)) / np.sqrt(len(features) - 1)
        roots.append(np.asarray(np.linalg.qr(centred, mode="r")))
    trace = np.linalg.svd(roots[0] @ roots[1].T, compute_uv=False).sum()
    means = ((first.mean(0) - second.mean(0)) ** 2).sum()
    return float(max(means + (roots[0] ** 2).sum() + (roots[1] ** 2).sum() - 2 * trace, 0.0))


def find_images(folder: Path) -> list[Path]:
    """Return the images in a folder and its subfolders, sorted by name."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())


def _read_images(paths: Sequence[Path]) -> Iterator[Image.Image]:
    for path in paths:
        try:
            yield read_image(path)
        except ValueError as error:
            raise SystemExit(f"{error}, or remove it from its folder") from error


def _run_in_batches(items: Iterable[T], embed: Callable[[list[T]], Any]) -> np.ndarray:
    """Compute the features of images or prompts in batches."""
    import paddle

    remaining, features = iter(items), []
    with paddle.no_grad():
        while batch := list(islice(remaining, _BATCH)):
            features.append(embed(batch).numpy())
    return np.concatenate(features).astype(np.float64)


def _describe_error(option: str, path: Path, error: Exception) -> str:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return f"{option} {path} could not be loaded; check that its files are complete ({type(error).__name__}: {reason})"


def compute_scores(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the scores of every configuration."""
    try:
        configurations = json.loads((args.compared / "compare.json").read_text())["configurations"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SystemExit(f"{args.compared} holds no results of compare ({error})") from error
    paths, prompts = {}, {}
    for row in configurations:
        name = row["configuration"]["name"]
        cases = [Case(sample["prompt"], sample["seed"]) for sample in row["samples"]]
        paths[name] = [case.locate(args.compared, name) for case in cases]
        prompts[name] = [case.prompt for case in cases]
        missing = [path for path in paths[name] if not path.is_file()]
        if missing:
            raise SystemExit(f"{missing[0]} is missing; generate it again with compare --overwrite")
    real_images = [] if args.real is None else find_images(args.real)
    if args.real is not None and min(len(real_images), *map(len, paths.values())) < 2:
        raise SystemExit(
            f"--real {args.real} has {len(real_images)} images ({', '.join(ENDINGS)}); it needs at least 2, and so "
            "does every configuration"
        )
    scores: dict[str, dict[str, float]] = {name: {} for name in paths}
    networks = {"clip": args.clip and Clip(args.clip), "inception": args.inception and Inception(args.inception)}
    for kind, network in networks.items():
        if network is None:
            continue
        real = network.embed_images(real_images) if real_images else None
        for name in paths:
            images = network.embed_images(paths[name])
            if kind == "clip":
                scores[name]["CLIP score"] = compute_clip_score(images, network.embed_prompts(prompts[name]))
            if real is not None:
                distance = "FID" if kind == "inception" else "Frechet distance (CLIP features)"
                scores[name][distance] = compute_frechet_distance(images, real)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("compared", type=Path, metavar="FOLDER", help="the --output of compare")
    parser.add_argument("--clip", type=Path, metavar="FOLDER", help="a CLIPModel of paddlenlp with its processor")
    parser.add_argument("--inception", type=Path, metavar="FILE",
                        help="FID's Inception network, as paddle.jit.save wrote it, without an ending")
    parser.add_argument("--real", type=Path, metavar="FOLDER", help="real images to compute the Frechet distance to")
    args = parser.parse_args()
    if args.clip is None and args.inception is None:
        parser.error("give --clip or --inception")
    if args.inception is not None and args.real is None:
        parser.error("--inception needs --real")
    scores = compute_scores(args)
    (args.compared / "scores.json").write_text(json.dumps(scores, indent=2) + "\n")
    names = list(next(iter(scores.values())))
    print(f"| configuration | {' | '.join(names)} |\n|---|{'---:|' * len(names)}")
    for configuration, row in scores.items():
        print(f"| {configuration} | {' | '.join(f'{row[name]:.2f}' for name in names)} |")


if __name__ == "__main__":
    main()

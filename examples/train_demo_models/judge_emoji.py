"""Judge the emoji model: its best guidance, whether it remembers, which steps decide; with a sheet of its images.

    python examples/train_demo_models/judge_emoji.py --model runs/exported/emoji --images runs/emoji.npz \
        --output outputs/emoji

It runs under Paddle. A picture counts as recognised where the nearest picture of the training is of its prompt's class.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from emoji_features import compute_distances, compute_features
from PIL import Image, ImageDraw
from ppdiffusers import StableDiffusionPipeline

from ppdiffusers_tome.api import use_tome
from ppdiffusers_tome.cpu.chunked_attention import enable_chunked_attention
from ppdiffusers_tome.cpu.process import keep_freed_memory
from ppdiffusers_tome.tools.generation.sampling import generate_batch
from ppdiffusers_tome.tuning.images import psnr

GUIDANCES = (0.0, 1.0, 1.5, 3.0, 5.0, 7.0, 15.0)
SHEET = ("face", "cat face", "heart", "hand", "person", "worker", "flag", "clock", "digit", "arrow", "zodiac", "button")


class Pictures:
    """The real pictures: their features, their classes and which were held out."""

    def __init__(self, file: Path) -> None:
        with np.load(file) as data:
            self.features, self.labels = compute_features(data["images"]), data["labels"].astype(np.int64)
            self.images, self.classes, self.is_held_out = data["images"], data["classes"].tolist(), data["is_held_out"]

    def find_nearest(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the distance to the nearest picture of the training, and its number, for each row of features."""
        trained = np.flatnonzero(~self.is_held_out)
        distances = compute_distances(features, self.features[trained])
        return distances.min(1), trained[distances.argmin(1)]


def compute_energy_distance(generated: np.ndarray, real: np.ndarray) -> float:
    """Return the energy distance of two samples of features (Székely and Rizzo 2013), unbiased; 0 if they are alike."""
    between = compute_distances(generated, real).mean()
    within = [compute_distances(x, x).sum() / (len(x) * (len(x) - 1)) for x in (generated, real)]
    return float(2 * between - sum(within))


def generate(pipe: Any, prompts: Sequence[str], seeds: Sequence[int], guidance: float, steps: int) -> np.ndarray:
    """Generate pictures, uint8 ``[prompts, 128, 128, 3]``; without guidance's prompt at 0."""
    images = []
    for start in range(0, len(prompts), 24):
        some = ["" if guidance == 0 else prompt for prompt in prompts[start : start + 24]]
        images += generate_batch(
            pipe, some, height=128, width=128, seeds=seeds[start : start + 24], steps=steps,
            guidance_scale=guidance or 1.0,
        )  # fmt: skip
    return np.stack([np.asarray(image) for image in images])


def judge_guidance(pipe: Any, pictures: Pictures, count: int, steps: int, guidances: Sequence[float]) -> list[dict]:
    """Return a row of figures for each guidance, from ``count`` pictures of each class."""
    labels = np.repeat(np.arange(len(pictures.classes)), count)
    prompts = [pictures.classes[label] for label in labels]
    held_out = pictures.features[pictures.is_held_out]
    held_out_distances, nearest = pictures.find_nearest(held_out)
    own = pictures.labels[pictures.is_held_out]
    tested = np.unique(own)
    typical = np.array([np.median(held_out_distances[own == label]) for label in tested])
    recognised = np.array([(pictures.labels[nearest] == own)[own == label].mean() for label in tested])
    rows = [{
        "guidance": "held-out pictures", "recognised": recognised.mean(), "nearest": float(np.median(typical)),
    }]  # fmt: skip
    for guidance in guidances:
        features = compute_features(generate(pipe, prompts, range(len(prompts)), guidance, steps))
        distances, nearest = pictures.find_nearest(features)
        found = pictures.labels[nearest]
        medians = np.array([np.median(distances[labels == label]) for label in tested])
        rows.append({
            "guidance": guidance,
            "recognised": float((found == labels).mean()),
            "by another's prompt": float((found == np.roll(labels, count * (len(pictures.classes) // 2))).mean()),
            "energy distance": float(np.mean([
                compute_energy_distance(features[labels == label], pictures.features[pictures.labels == label])
                for label in range(len(pictures.classes))
            ])),
            "nearest": float(np.median(medians)),
            "classes nearer than held-out": int((medians < typical).sum()),
            "tested classes": len(tested),
            "smallest": float(distances.min()),
        })  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
    return rows


@contextmanager
def repeat_predictions(unet: Any, steps: int, repeated: Sequence[int]) -> Iterator[None]:
    """Give the UNet's previous output again at some of an image's steps."""
    calls, output = 0, None

    def replace_output(_: Any, __: Any, new: Any) -> Any:
        nonlocal calls, output
        output = output if calls % steps in repeated else new
        calls += 1
        return output

    hook = unet.register_forward_post_hook(replace_output)
    try:
        yield
    finally:
        hook.remove()


def judge_steps(pipe: Any, prompts: Sequence[str], guidance: float, steps: int) -> dict[str, float]:
    """Return the median PSNR in dB, to the whole denoising, of one in which two steps are replaced."""
    def generate_all() -> list[np.ndarray]:
        return [generate(pipe, [prompt], [seed], guidance, steps)[0] for seed, prompt in enumerate(prompts)]

    def compare() -> float:
        return float(np.median([psnr(a, b) for a, b in zip(whole, generate_all(), strict=True)]))

    whole, found = generate_all(), {}
    for repeated in ((1, 2), (steps - 2, steps - 1)):
        with repeat_predictions(pipe.unet, steps, repeated):
            found[f"predictions of steps {repeated} repeated"] = compare()
    for skipped in ((2, 3), (steps - 3, steps - 2)):  # the cache computes the first two steps and the last one
        with use_tome(pipe, 0, cache=tuple(step for step in range(steps) if step not in skipped)):
            found[f"cache skips steps {skipped}"] = compare()
    return found


def make_sheet(pipe: Any, guidance: float, steps: int, side: int = 128) -> Image.Image:
    """Generate two pictures of each of twelve classes, with their prompts below."""
    prompts = [prompt for prompt in SHEET for _ in range(2)]
    images = generate(pipe, prompts, range(len(prompts)), guidance, steps)
    sheet = Image.new("RGB", (8 * side, 3 * (side + 16)), "white")
    for number, (prompt, image) in enumerate(zip(prompts, images, strict=True)):
        x, y = number % 8 * side, number // 8 * (side + 16)
        sheet.paste(Image.fromarray(image), (x, y))
        ImageDraw.Draw(sheet).text((x + side // 2, y + side + 2), prompt, fill="black", anchor="mt")
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="folder of the pipeline, as export.py writes it")
    parser.add_argument("--parts", nargs="+", choices=("curve", "steps", "sheet"), default=("curve", "steps", "sheet"))
    parser.add_argument("--count", type=int, default=4, help="pictures of each class and guidance")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, default=5.0, help="of the sheet and of the steps")
    parser.add_argument("--guidances", type=float, nargs="+", default=GUIDANCES)
    args = parser.parse_args()
    keep_freed_memory()
    args.output.mkdir(parents=True, exist_ok=True)
    pipe = StableDiffusionPipeline.from_pretrained(str(args.model), safety_checker=None)
    pipe.set_progress_bar_config(disable=True)
    enable_chunked_attention(pipe)
    if "sheet" in args.parts:
        make_sheet(pipe, args.guidance, args.steps).save(args.output / "sheet.jpg", quality=88)
    if "steps" in args.parts:
        found = judge_steps(pipe, SHEET[::2], args.guidance, args.steps)
        print(json.dumps(found), flush=True)
        (args.output / "steps.json").write_text(json.dumps(found, indent=2) + "\n")
    if "curve" in args.parts:
        rows = judge_guidance(pipe, Pictures(args.images), args.count, args.steps, args.guidances)
        (args.output / "curve.json").write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

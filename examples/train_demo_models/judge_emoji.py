"""Judge a model of emoji by the images that it generated: by guidance or setting, whether it remembers; with a sheet.

    python examples/train_demo_models/judge_emoji.py --generated runs/emoji/generated-unet.npz \
        --images runs/emoji.npz --sheet outputs/emoji.jpg

An image counts as recognised where the nearest image of the training is of its class. It needs numpy and Pillow.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from emoji_features import compute_distances, compute_features
from PIL import Image, ImageDraw

SHEET = (
    "face", "cat face", "heart", "hand", "person", "bird", "flower", "fruit", "car", "ship", "clock", "digit",
)  # fmt: skip
ROWS = "face", "cat face", "heart", "bird", "flower", "fruit", "car", "clock"


class RealImages:
    """The real images: their features, their classes and which were held out."""

    def __init__(self, file: Path) -> None:
        with np.load(file) as data:
            self.features, self.labels = compute_features(data["images"]), data["labels"].astype(np.int64)
            self.classes, self.is_held_out = data["classes"].tolist(), data["is_held_out"]

    def find_nearest(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the distance to the nearest image of the training, and its class, for each row of features."""
        trained = np.flatnonzero(~self.is_held_out)
        distances = compute_distances(features, self.features[trained])
        return distances.min(1), self.labels[trained[distances.argmin(1)]]


def compute_energy_distance(generated: np.ndarray, real: np.ndarray) -> float:
    """Return the energy distance of two samples of features (Székely and Rizzo 2013), unbiased; 0 if they are alike."""
    between = compute_distances(generated, real).mean()
    within = [compute_distances(x, x).sum() / (len(x) * (len(x) - 1)) for x in (generated, real)]
    return float(2 * between - sum(within))


def judge(generated: dict[str, np.ndarray], real: RealImages) -> list[dict[str, object]]:
    """Return a row of figures for the held-out images, and one for each guidance or setting."""
    held_out_distances, found = real.find_nearest(real.features[real.is_held_out])
    own = real.labels[real.is_held_out]
    tested = np.unique(own)
    typical = np.array([np.median(held_out_distances[own == label]) for label in tested])
    recognised = [(found == own)[own == label].mean() for label in tested]
    rows: list[dict[str, object]] = [
        {"setting": "held-out images", "recognised": np.mean(recognised), "nearest": np.median(typical)}
    ]
    for name, images in generated.items():
        features = compute_features(images.reshape(-1, *images.shape[2:]))
        labels = np.repeat(np.arange(len(images)), images.shape[1])
        distances, found = real.find_nearest(features)
        medians = np.array([np.median(distances[labels == label]) for label in tested])
        energies = [
            compute_energy_distance(features[labels == label], real.features[real.labels == label])
            for label in range(len(images))
            if images.shape[1] > 1
        ]
        rows.append({
            "setting": name,
            "images": len(labels),
            "recognised": (found == labels).mean(),
            "as another class": (found == np.roll(labels, images.shape[1] * (len(images) // 2))).mean(),
            "energy distance": np.mean(energies) if energies else None,
            "nearest": np.median(medians),
            "classes nearer than held-out": int((medians < typical).sum()),
            "tested classes": len(tested),
        })  # fmt: skip
    return rows


def make_sheet(images: np.ndarray, classes: list[str]) -> Image.Image:
    """Draw two images of each of twelve classes, with their names below."""
    side = images.shape[2]
    sheet = Image.new("RGB", (8 * side, 3 * (side + 16)), "white")
    for number in range(24):
        name = SHEET[number // 2]
        x, y = number % 8 * side, number // 8 * (side + 16)
        sheet.paste(Image.fromarray(images[classes.index(name)][number % 2]), (x, y))
        ImageDraw.Draw(sheet).text((x + side // 2, y + side + 2), name, fill="black", anchor="mt")
    return sheet


def make_rows(generated: dict[str, np.ndarray], classes: list[str]) -> Image.Image:
    """Draw one image of each of eight classes with each setting, a row a setting, with its name on the left."""
    side, margin = next(iter(generated.values())).shape[2], 110
    sheet = Image.new("RGB", (margin + 8 * side, len(generated) * side), "white")
    for row, (name, images) in enumerate(generated.items()):
        ImageDraw.Draw(sheet).text((4, row * side + side // 2), name, fill="black", anchor="lm", font_size=18)
        for number, shown in enumerate(ROWS):
            sheet.paste(Image.fromarray(images[classes.index(shown)][0]), (margin + number * side, row * side))
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--generated", type=Path, required=True, help="images, by guidance or setting")
    parser.add_argument("--images", type=Path, required=True, help="the real images, as emoji.py writes them")
    parser.add_argument("--sheet", type=Path, help="to draw")
    parser.add_argument("--drawn", default=["5.0"], nargs="+", help="the guidance or setting of the sheet, or several")
    args = parser.parse_args()
    real = RealImages(args.images)
    with np.load(args.generated) as file:
        generated = {name: file[name] for name in file}
    if args.sheet:
        drawn = {name: generated[name] for name in args.drawn}
        sheet = make_rows(drawn, real.classes) if len(drawn) > 1 else make_sheet(*drawn.values(), real.classes)
        sheet.save(args.sheet, quality=90)
    for row in judge(generated, real):
        print(json.dumps({
            name: value if value is None or isinstance(value, int | str) else round(float(value), 4)
            for name, value in row.items()
        }))  # fmt: skip


if __name__ == "__main__":
    main()

"""Plot the seconds of an image, by Paddle and compiled, unmerged and with ``balanced``.

python docs/measured/seconds.py docs/measured/performance/compiled-whole-epyc.csv --plot docs/images/seconds.png
"""

import argparse
import csv
import statistics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

NAMES = {"float32, by Paddle, one image": "Paddle", "bfloat16": "compiled", "int8": "compiled in 8 bits"}


def read_rows(path: Path) -> list[tuple[str, float]]:
    """Read names and median seconds: of images after the first, or else of the first."""
    with path.open(encoding="utf-8") as file:
        found = {}
        for row in csv.DictReader(file):
            images = row["next (s)"] or row["first (s)"]
            found[row["precision"], row["setting"]] = statistics.median(map(float, images.split()))
    settings = ("unmerged", "balanced")
    return [(f"{name}, {setting}", found[key, setting]) for key, name in NAMES.items() for setting in settings]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--plot", type=Path, required=True)
    args = parser.parse_args()
    names, seconds = zip(*read_rows(args.csv), strict=True)
    figure, axes = plt.subplots(figsize=(8.6, 2.9), dpi=110)
    axes.barh(names, seconds, color=["#1f6feb" if "balanced" in name else "#b6bcc4" for name in names], height=0.66)
    axes.invert_yaxis()
    for number, value in enumerate(seconds):
        axes.text(value + 4, number, f"{value:.0f} s", va="center", fontsize=11)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_xticks([])
    axes.set_xlim(0, max(seconds) * 1.1)
    axes.tick_params(axis="y", length=0, labelsize=11)
    axes.set_title("Seconds of an image: Stable Diffusion 1.5's shape, 512x512, 20 steps, two CPU cores", loc="right")
    figure.tight_layout()
    figure.savefig(args.plot)


if __name__ == "__main__":
    main()

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

NAMES = {
    "float32, by Paddle, one image": "by Paddle",
    "float32": "compiled\nin float32",
    "bfloat16": "compiled\nin bfloat16",
    "int8": "compiled\nin 8 bits",
}
COLOURS = {"unmerged": "#b6bcc4", "balanced": "#1f6feb"}


def read_seconds(path: Path) -> dict[tuple[str, str], list[float]]:
    """Read seconds by precision and setting: of images after the first, or else of the first."""
    with path.open(encoding="utf-8") as file:
        return {
            (row["precision"], row["setting"]): list(map(float, (row["next (s)"] or row["first (s)"]).split()))
            for row in csv.DictReader(file)
        }


def format_seconds(seconds: list[float]) -> str:
    """Write the median, and the lowest and highest where they differ."""
    low, high = f"{min(seconds):.0f}", f"{max(seconds):.0f}"
    return f"{statistics.median(seconds):.0f} s" + (f" ({low} to {high})" if low != high else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--plot", type=Path, required=True)
    args = parser.parse_args()
    seconds = read_seconds(args.csv)
    figure, axes = plt.subplots(figsize=(8.6, 3.1), dpi=110)
    for offset, (setting, colour) in enumerate(COLOURS.items()):
        for group, precision in enumerate(NAMES):
            place, found = group + (offset - 0.5) * 0.38, seconds[precision, setting]
            axes.barh(place, statistics.median(found), height=0.36, color=colour)
            label = f"{format_seconds(found)}  {setting}"
            axes.text(statistics.median(found) + 4, place, label, va="center", fontsize=10)
    axes.set_yticks(range(len(NAMES)), list(NAMES.values()), fontsize=11)
    axes.invert_yaxis()
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_xticks([])
    axes.set_xlim(0, 500)
    axes.tick_params(axis="y", length=0)
    figure.tight_layout()
    figure.savefig(args.plot)


if __name__ == "__main__":
    main()

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
    "float32, by Paddle": "by Paddle",
    "float32": "compiled\nin float32",
    "bfloat16": "compiled\nin bfloat16",
    "int8": "compiled\nin 8 bits",
}
COLOURS = {"unmerged": "#b6bcc4", "balanced": "#1f6feb"}


def read_seconds(path: Path) -> dict[tuple[str, str], float]:
    """Read the median seconds of images, without the first compiled ones."""
    with path.open(encoding="utf-8") as file:
        return {
            (row["precision"], row["setting"]): statistics.median(map(float, row["next (s)"].split()))
            for row in csv.DictReader(file)
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--plot", type=Path, required=True)
    args = parser.parse_args()
    seconds = read_seconds(args.csv)
    figure, axes = plt.subplots(figsize=(8.6, 3.6), dpi=110)
    for offset, (setting, colour) in enumerate(COLOURS.items()):
        for group, precision in enumerate(NAMES):
            place, found = group + (offset - 0.5) * 0.38, seconds[precision, setting]
            axes.barh(place, found, height=0.36, color=colour)
            axes.text(found + 4, place, f"{found:.0f} s  {setting}", va="center", fontsize=10)
    axes.set_yticks(range(len(NAMES)), list(NAMES.values()), fontsize=11)
    axes.invert_yaxis()
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_xticks([])
    axes.set_xlim(0, 480)
    axes.tick_params(axis="y", length=0)
    figure.tight_layout()
    figure.savefig(args.plot)


if __name__ == "__main__":
    main()

"""Plot the loss curves of training runs.

    cd examples/train_demo_models/losses
    python ../plot_loss.py --output loss.png --runs "text encoder=text.jsonl" \
        "small UNet=unet-small.jsonl" UNet=unet.jsonl ControlNet=controlnet.jsonl
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", nargs="+", required=True, help="TITLE=FOLDER of a run, or TITLE=FILE of its losses")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    figure, axes = plt.subplots(1, len(args.runs), figsize=(4 * len(args.runs), 4), constrained_layout=True)
    for axis, run in zip(axes, args.runs, strict=True):
        title, _, path = run.partition("=")
        file = Path(path) / "loss.jsonl" if Path(path).is_dir() else Path(path)
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        # Every stage counts its steps from 0.
        earlier_steps, previous, xs = 0, 0, []
        for row in rows:
            earlier_steps += previous if row["step"] <= previous else 0
            previous = row["step"]
            xs.append(earlier_steps + row["step"])
        stages = dict.fromkeys(row["stage"] for row in rows)
        for stage in stages:
            points = [(x, row["loss"]) for x, row in zip(xs, rows, strict=True) if row["stage"] == stage]
            axis.plot(*zip(*points, strict=True), label=stage)
        axis.set(title=title, xlabel="step", ylabel="loss", yscale="log")
        axis.grid(alpha=0.3, which="both")
        if len(stages) > 1:
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize="small")  # below the plot
    args.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.output, dpi=110)


if __name__ == "__main__":
    main()

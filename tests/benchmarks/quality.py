"""Measure how good merged images are, beside unmerged ones and fewer steps: bundled-emoji, 20 steps, guidance 7.5.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.quality generate --scheduler ddim --images-per-class 12 \
        --output outputs/quality
    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.quality seconds --scheduler ddim
    PYTHONPATH=tests quality-venv/bin/python -m benchmarks.quality table --scheduler ddim --images outputs/quality \
        --real runs/emoji-features.npz
    PYTHONPATH=tests python -m benchmarks.quality picture --scheduler ddim --images outputs/quality --output quality.jpg

``generate`` writes the images of each setting, all from the same noise, and resumes; other work on the machine changes
nothing. ``seconds`` times an image of each setting in turn on a quiet machine. ``table`` writes
docs/measured/quality/SCHEDULER.csv and prints it as Markdown: what a probe recognises, energy and Fréchet distances to
real emoji, their differences to the unmerged images and to fewer steps at the cost, with 95% intervals. It runs in the
environment of ``quality_features``, which says how the real emoji's features are made
(examples/train_demo_models/emoji.py draws them), and needs no Paddle.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.quality_statistics import MEASURES, RealImages, Sample, compare, draw_counts, judge

if TYPE_CHECKING:
    from PIL import Image

    from benchmarks.step_caches import Variant

FOLDER = Path("docs/measured/quality")
SCHEDULERS = ("ddim", "pndm")
STEPS, GUIDANCE, SIDE = 20, 7.5, 128
UNMERGED = "unmerged"
MERGED = ("ratio=0.5", "quality", "balanced", "fast")
CHOSEN = {"14-chosen": 14, "10-chosen": 10}  # steps of 20, by the model
FEWER = {"16-steps": 16, "12-steps": 12, "10-steps": 10, "8-steps": 8, "5-steps": 5}  # 5: to be told apart
SETTINGS = (UNMERGED, *MERGED, "cache=0.2", *CHOSEN, *FEWER)
NUM_RESAMPLES = 2000
SAME_COST = 1.03  # at most so much dearer
DRAWN_CLASSES = ("face", "cat face", "heart", "bird", "flower", "fruit", "car", "clock")
DRAWN_SETTINGS = (UNMERGED, "ratio=0.5", "balanced", "cache=0.2", "12-steps")


def make_variant(setting: str, scheduler: str) -> Variant:
    """Return one of ``SETTINGS`` as ``step_caches`` applies it."""
    from benchmarks.step_caches import Variant, read_chosen
    from ppdiffusers_tome.settings.config import ToMeConfig

    if setting == UNMERGED or setting in FEWER:
        return Variant(setting, "", None, FEWER.get(setting, STEPS))
    if setting in CHOSEN:
        chosen = read_chosen("emoji", "guided", scheduler, STEPS)[CHOSEN[setting]]
        config = ToMeConfig(0.0, cache=chosen.steps, cache_steps=len(chosen.slopes))
    elif setting == "fast":
        config = ToMeConfig(15 / 16, sx=4, sy=4, method="todo", max_downsample=2)
    else:
        config = {"ratio=0.5": ToMeConfig(0.5), "cache=0.2": ToMeConfig(0.0, cache=0.2)}.get(setting)
        config = config or ToMeConfig.preset(setting)
    return Variant(setting, "", config, STEPS)


def generate(scheduler: str, images_per_class: int, settings: Sequence[str], folder: Path) -> None:
    """Write uint8 ``images`` ``[classes * images_per_class, 128, 128, 3]`` of each setting, class by class."""
    from benchmarks.step_caches import Model
    from ppdiffusers_tome.tools.demo_model import EMOJI_CLASSES

    model = Model("emoji", scheduler)
    for setting in settings:
        variant = make_variant(setting, scheduler)
        model.apply(variant)

        def make_image(number: int, seed: int, steps: int = variant.steps) -> np.ndarray:
            name = EMOJI_CLASSES[number]
            return np.asarray(model.generate(name, steps, seed=seed, guidance=GUIDANCE, size=SIDE))

        complete_images(folder / f"{scheduler}-{setting}.npz", len(EMOJI_CLASSES), images_per_class, make_image)


def complete_images(
    path: Path, num_classes: int, images_per_class: int, make_image: Callable[[int, int], np.ndarray]
) -> None:
    """Make the images that a file lacks by their class and seed, and write it after each class."""
    images: list[np.ndarray] = []
    if path.exists():
        with np.load(path) as file:
            if file["images_per_class"] != images_per_class:
                raise SystemExit(f"{path} has {file['images_per_class']} images of each class; choose another --output")
            images = list(file["images"])
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in range(len(images) // images_per_class, num_classes):
        images += [make_image(number, seed) for seed in range(images_per_class)]
        partial = path.with_suffix(".partial.npz")
        np.savez_compressed(partial, images=np.stack(images), images_per_class=images_per_class)
        os.replace(partial, path)
        print(f"{path}: {number + 1} of {num_classes} classes", flush=True)


def measure_seconds(scheduler: str, rounds: int, path: Path) -> None:
    """Time an image of each setting in turn, and replace the scheduler's rows of a table."""
    from benchmarks.step_caches import Model
    from benchmarks.timing import Spread, measure_seconds
    from benchmarks.turns import take_turns
    from ppdiffusers_tome.tools.measure.system import describe_machine

    model = Model("emoji", scheduler)

    def time_image(variant: Variant) -> float:
        model.apply(variant)
        return measure_seconds(lambda: model.generate("face", variant.steps, guidance=GUIDANCE, size=SIDE))

    variants = [make_variant(setting, scheduler) for setting in SETTINGS]
    turns = {variant.name: lambda variant=variant: time_image(variant) for variant in variants}
    machine = describe_machine()
    rows = [row for row in read_table(path) if row["scheduler"] != scheduler]
    for setting, seconds in take_turns(turns, rounds, progress="rounds").items():
        spread = Spread.from_values(seconds)
        rows.append({
            "scheduler": scheduler, "setting": setting, "seconds": f"{spread.median:.3f}",
            "lowest": f"{spread.low:.3f}", "highest": f"{spread.high:.3f}", "images": str(rounds),
            "processor": str(machine["processor"]), "threads": machine["threads"], "paddle": machine["paddle"],
        })  # fmt: skip
    write_table(path, rows)


def read_sample(folder: Path, scheduler: str, setting: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the features ``[images, 1280]`` and the PSNR to the unmerged images, in dB, ``[images]``.

    A file has them, or images of which they are computed.
    """
    with np.load(folder / f"{scheduler}-{setting}.npz") as file:
        if "features" in file:
            return file["features"], file["psnr"]
        images = file["images"]
    from benchmarks.quality_features import compute_features

    with np.load(folder / f"{scheduler}-{UNMERGED}.npz") as file:
        errors = np.square(file["images"][: len(images)].astype(np.float32) - images).mean((1, 2, 3))
    with np.errstate(divide="ignore"):
        return compute_features(images), 10 * np.log10(255**2 / errors)


def make_table(scheduler: str, folder: Path, real_features: Path) -> list[dict[str, str]]:
    """Return a row for each setting that has all its images."""
    with np.load(real_features) as file:
        real, classes = RealImages(file["features"], file["labels"], file["is_held_out"]), file["classes"].tolist()
    print(f"real emoji held out: {real.accuracy:.1%} recognised, {real.accuracy_by_class:.1%} by class")
    samples = {
        setting: read_sample(folder, scheduler, setting)
        for setting in SETTINGS if (folder / f"{scheduler}-{setting}.npz").exists()
    }  # fmt: skip
    num_images = len(samples[UNMERGED][0])
    images_per_class = num_images // len(classes)
    counts = draw_counts(len(classes), images_per_class, NUM_RESAMPLES if images_per_class > 1 else 0)
    measured = {
        setting: Sample(real, features, images_per_class).measure(counts)
        for setting, (features, _) in samples.items() if len(features) == num_images
    }  # fmt: skip
    seconds = {
        row["setting"]: float(row["seconds"]) for row in read_table(FOLDER / "seconds.csv")
        if row["scheduler"] == scheduler
    }  # fmt: skip
    rows = []
    for setting, values in measured.items():
        psnr = samples[setting][1]
        row = {"setting": setting.replace("-", " "), "images": str(num_images), "seconds": "", "psnr": "", "lowest": ""}
        if setting in seconds:
            row["seconds"] = f"{seconds[setting]:.2f}"
        if setting != UNMERGED:
            row |= {"psnr": f"{np.median(psnr):.1f}", "lowest": f"{psnr.min():.1f}"}
        row |= {name: f"{values[name][0]:.3f}" for name in MEASURES}
        unmerged = None if setting == UNMERGED else measured[UNMERGED]
        row |= describe_differences(values, unmerged, images_per_class, "than unmerged")
        fewer = find_fewer_steps(setting, seconds)
        row["fewer steps at its cost"] = fewer.replace("-", " ")
        row |= describe_differences(values, measured.get(fewer), images_per_class, "than fewer steps")
        rows.append(row)
    return rows


def describe_differences(
    values: dict[str, np.ndarray], other: dict[str, np.ndarray] | None, images_per_class: int, than: str
) -> dict[str, str]:
    """Return the columns that compare a setting with another: each measure's difference and the verdict."""
    if other is None:
        return dict.fromkeys([*(f"{name} {than}" for name in MEASURES), f"verdict {than}"], "")
    found = compare(values, other, images_per_class)
    row = {f"{name} {than}": f"{d.value:+.3f} ({d.low:+.3f} to {d.high:+.3f})" for name, d in found.items()}
    return row | {f"verdict {than}": judge(found)}


def find_fewer_steps(setting: str, seconds: dict[str, float]) -> str:
    """Return the most steps without settings that cost no more than a setting; "" if none do."""
    if setting == UNMERGED or setting in FEWER or setting not in seconds:
        return ""
    cheaper = (each for each in (UNMERGED, *FEWER) if seconds[each] <= SAME_COST * seconds[setting])
    return next(cheaper, "")


def format_markdown(rows: Sequence[dict[str, str]]) -> str:
    """Format a table in Markdown, its first column on the left."""
    lines = [[*rows[0]], ["---", *["---:"] * (len(rows[0]) - 1)], *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def read_table(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_table(path: Path, rows: Sequence[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def draw_picture(scheduler: str, folder: Path) -> Image.Image:
    """Draw an image of each of eight classes with each of five settings, a row a setting."""
    from PIL import Image, ImageDraw

    from ppdiffusers_tome.tools.demo_model import EMOJI_CLASSES

    margin = 110
    sheet = Image.new("RGB", (margin + len(DRAWN_CLASSES) * SIDE, len(DRAWN_SETTINGS) * SIDE), "white")
    for row, setting in enumerate(DRAWN_SETTINGS):
        words = setting.replace("-", " ")
        ImageDraw.Draw(sheet).text((4, (row + 0.5) * SIDE), words, fill="black", anchor="lm", font_size=18)
        with np.load(folder / f"{scheduler}-{setting}.npz") as file:
            images, step = file["images"], len(file["images"]) // len(EMOJI_CLASSES)
        for column, name in enumerate(DRAWN_CLASSES):
            image = Image.fromarray(images[EMOJI_CLASSES.index(name) * step])
            sheet.paste(image, (margin + column * SIDE, row * SIDE))
    return sheet


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands: Any = parser.add_subparsers(dest="command", required=True)
    for name in ("generate", "seconds", "table", "picture"):
        command = commands.add_parser(name)
        command.add_argument("--scheduler", choices=SCHEDULERS, default="ddim")
        if name == "generate":
            command.add_argument("--images-per-class", type=int, default=12)
            command.add_argument("--only", choices=SETTINGS, nargs="+", default=SETTINGS, metavar="NAME")
        elif name == "seconds":
            command.add_argument("--rounds", type=int, default=5)
        else:
            command.add_argument("--images", type=Path, required=True, metavar="FOLDER")
        if name == "table":
            command.add_argument("--real", type=Path, required=True, help="features of real emoji")
        if name in ("generate", "picture"):
            command.add_argument("--output", type=Path, required=True)
        if name == "table":
            command.add_argument("--output", type=Path, default=FOLDER)
    args = parser.parse_args(argv)
    if args.command == "table":
        rows = make_table(args.scheduler, args.images, args.real)
        write_table(args.output / f"{args.scheduler}.csv", rows)
        print(format_markdown(rows))
        return
    if args.command == "picture":
        draw_picture(args.scheduler, args.images).save(args.output, quality=90)
        return
    from benchmarks.pages import prepare

    prepare()
    if args.command == "generate":
        generate(args.scheduler, args.images_per_class, args.only, args.output)
    else:
        measure_seconds(args.scheduler, args.rounds, FOLDER / "seconds.csv")


if __name__ == "__main__":
    main()

"""Measure the quality of merged, unmerged and fewer-step images of emoji.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.quality generate --output outputs/quality
    quality-venv/bin/python tests/benchmarks/quality_features.py generated outputs/quality --output outputs/features
    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.quality seconds
    PYTHONPATH=tests python -m benchmarks.quality table --features outputs/features --real runs/emoji-features.npz
    PYTHONPATH=tests python -m benchmarks.quality picture --images outputs/quality --output quality.jpg

``generate`` writes SCHEDULER/SETTING/SEED.npy, the images of all classes from one noise, and resumes; other work on the
machine changes nothing. ``seconds`` times an image of each setting in turn on a quiet machine. Both take ``--model``,
``--guidance``, ``--compile bfloat16``, by which OpenVINO computes, ``--settings``, such as "balanced, 12 steps" or
"balanced, int8", compiled in that precision, and ``--enlarge FOLDER``, by which img2img draws images of such a FOLDER
again at twice their size ("hires fix"). ``table``
writes docs/measured/quality/SCHEDULER.csv and prints it as Markdown: what a probe recognises, energy and Fréchet
distances to real emoji, their differences to the unmerged images and to fewer steps at the cost, with 95% intervals; it
needs numpy and scikit-learn. examples/train_demo_models/emoji.py draws the real emoji. ``texts`` writes what a twin in
another framework needs, and ``compare`` tells how alike its images are to those of ``generate``.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from ast import literal_eval
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.quality_statistics import MEASURES, RealImages, Sample, compare, draw_counts, judge

if TYPE_CHECKING:
    from PIL import Image

    from benchmarks.step_caches import Variant

FOLDER = Path("docs/measured/quality")
SCHEDULERS = ("ddim", "pndm")
PRECISIONS = ("float32", "bfloat16", "int8")
STEPS = 20
UNMERGED = "unmerged"
MERGED = ("ratio=0.5", "quality", "balanced")
FEWER = {f"{steps} steps": steps for steps in (18, 16, 12, 10, 8, 5)}  # 5: to be told apart
SETTINGS = (UNMERGED, *MERGED, "cache=0.2", *FEWER)
NUM_RESAMPLES = 2000
SAME_COST = 1.03  # at most so much dearer
DRAWN_CLASSES = ("face", "cat face", "heart", "bird", "flower", "fruit", "car", "clock")
DRAWN_SETTINGS = (UNMERGED, "ratio=0.5", "balanced", "cache=0.2", "12 steps")


def make_variant(setting: str) -> Variant:
    """Return a setting, such as ``"balanced, end=0.9, 12 steps"``, as ``step_caches`` applies it."""
    from benchmarks.step_caches import Variant
    from ppdiffusers_tome.settings.config import ToMeConfig

    words = setting.split(", ")
    options = {name: literal_eval(value) for name, _, value in (word.partition("=") for word in words) if value}
    steps = next((int(word.removesuffix(" steps")) for word in words if word.endswith(" steps")), STEPS)
    others = (UNMERGED, *PRECISIONS)
    presets = [word for word in words if word not in others and "=" not in word and not word.endswith(" steps")]
    if not presets and not options:
        return Variant(setting, "", None, steps)
    config = ToMeConfig.preset(*presets) if presets else ToMeConfig(0.0)
    return Variant(setting, "", replace(config, **options), steps)


def load_models(args: argparse.Namespace) -> dict[str, Any]:
    """Return each setting's model, one for a precision: its last word or ``--compile``'s."""
    precisions = {name: name.split(", ")[-1] if name.endswith(PRECISIONS) else args.compile for name in args.settings}
    models = {precision: load_model(args, precision) for precision in {*precisions.values()}}
    return {name: models[precision] for name, precision in precisions.items()}


def load_model(args: argparse.Namespace, precision: str | None) -> Any:
    """Load a model of emoji that draws or, with ``--enlarge``, enlarges by img2img."""
    from ppdiffusers import StableDiffusionImg2ImgPipeline

    from benchmarks.step_caches import Model
    from ppdiffusers_tome.compilation.api import compile_cpu

    model = Model(args.model, args.scheduler, uses_kernels=precision is None)
    if args.enlarge is not None:
        model.pipe = StableDiffusionImg2ImgPipeline(**model.pipe.components, requires_safety_checker=False)
        model.pipe.set_progress_bar_config(disable=True)
    if precision is not None:
        compile_cpu(model.pipe, precision)
    return model


def draw(model: Any, name: str, steps: int, args: argparse.Namespace, seed: int = 0) -> Image.Image:
    """Draw a class at the model's own size, or redraw an enlarged drawing."""
    if args.enlarge is None:
        side = model.pipe.unet.config.sample_size * model.pipe.vae_scale_factor
        return model.generate(name, steps, seed=seed, guidance=args.guidance, size=side)
    import paddle
    from PIL import Image

    from benchmarks.step_caches import list_emoji_classes

    image = Image.fromarray(np.load(args.enlarge / f"{seed}.npy")[list_emoji_classes().index(name)])
    image = image.resize((2 * image.width, 2 * image.height), Image.Resampling.BICUBIC)
    paddle.seed(seed)
    return model.pipe(
        prompt=name, image=image, strength=args.strength, num_inference_steps=steps, guidance_scale=args.guidance
    ).images[0]


def generate(args: argparse.Namespace) -> None:
    """Write the missing uint8 images, seed by seed: ``[classes, side, side, 3]``."""
    models, variants = load_models(args), [*map(make_variant, args.settings)]
    for seed, variant in product(range(*args.seeds), variants):
        path = args.output / args.scheduler / variant.name / f"{seed}.npy"
        if path.exists():
            continue
        model = models[variant.name]
        model.apply(variant)
        save_images(path, np.stack([np.asarray(draw(model, name, variant.steps, args, seed)) for name in args.classes]))
        print(path, flush=True)


def save_images(path: Path, images: np.ndarray) -> None:
    """Write images as a whole, so that a file that is there is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".partial-{os.getpid()}.npy")
    np.save(unfinished, images)
    unfinished.rename(path)


def write_texts(path: Path) -> None:
    """Write embeddings of classes and no prompt, and the calls that the cache skips."""
    from benchmarks.step_caches import Model, list_emoji_classes

    skipped: dict[str, dict[str, list[int]]] = {}
    for scheduler in SCHEDULERS:
        model = Model("emoji", scheduler)
        model.apply(make_variant("cache=0.2"))
        model.generate("bird", STEPS, guidance=7.5, size=128)
        computed = model.pipe.tome.entries[0].last_image.computed_steps
        calls = range(len(model.pipe.scheduler.timesteps))
        skipped[scheduler] = {"cache=0.2": [call for call in calls if call not in computed]}
    texts = [model.pipe.encode_prompt(prompt, 1, False)[0].numpy() for prompt in (*list_emoji_classes(), "")]
    np.savez(path, texts=np.concatenate(texts), skipped=json.dumps(skipped))


def compare_images(scheduler: str, folder: Path, other: Path) -> None:
    """Print each setting's median and lowest PSNR between two folders' images."""
    from ppdiffusers_tome.tuning.similarity import compute_psnr

    for setting in SETTINGS:
        psnrs: list[float] = []
        for path in (folder / scheduler / setting).glob("*.npy"):
            twin = other / path.relative_to(folder)
            if twin.exists():
                psnrs += map(compute_psnr, np.load(path), np.load(twin))
        if psnrs:
            print(f"{scheduler}, {setting}: {np.median(psnrs):.1f} ({min(psnrs):.1f}) dB, {len(psnrs)} images")


def time_images(args: argparse.Namespace) -> None:
    """Time an image of each setting in turn; replace those rows."""
    from benchmarks.timing import Spread, measure_seconds
    from benchmarks.turns import take_turns
    from ppdiffusers_tome.tools.measure.system import describe_machine

    models = load_models(args)

    def time_image(variant: Variant) -> float:
        model = models[variant.name]
        model.apply(variant)
        run = lambda: draw(model, "face", variant.steps, args)  # noqa: E731
        if args.compile is not None or variant.name.endswith(PRECISIONS):
            run()  # which may compile
        return measure_seconds(run)

    turns = {name: partial(time_image, make_variant(name)) for name in args.settings}
    timed = [(args.scheduler, name) for name in args.settings]
    rows = [row for row in read_table(args.output) if (row["scheduler"], row["setting"]) not in timed]
    machine = describe_machine()
    for setting, seconds in take_turns(turns, args.rounds, progress="rounds").items():
        spread = Spread.from_values(seconds)
        rows.append({
            "scheduler": args.scheduler, "setting": setting, "seconds": f"{spread.median:.3f}",
            "lowest": f"{spread.low:.3f}", "highest": f"{spread.high:.3f}", "images": str(args.rounds),
            "processor": str(machine["processor"]), "threads": machine["threads"], "paddle": machine["paddle"],
        })  # fmt: skip
    write_table(args.output, rows)


def read_samples(folder: Path, settings: Sequence[str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return each setting's features and PSNRs, class by class.

    They are ``[images, 1280]`` and ``[images]``, of the seeds that every setting has.
    """
    settings = [setting for setting in settings if (folder / setting).exists()]
    names = set.intersection(*({path.name for path in (folder / each).glob("*.npz")} for each in settings))
    samples = {}
    for setting in settings:
        files = [np.load(folder / setting / name) for name in sorted(names)]
        features, psnrs = (np.stack([file[name] for file in files], axis=1) for name in ("features", "psnr"))
        samples[setting] = features.reshape(-1, features.shape[-1]), psnrs.ravel()
    return samples


def make_table(
    scheduler: str, folder: Path, real_features: Path, *, settings: Sequence[str], seconds_file: Path,
    other: str | None = None,
) -> list[dict[str, str]]:  # fmt: skip
    """Return a row for each setting, beside another or as costly fewer steps."""
    with np.load(real_features) as file:
        real, classes = RealImages(file["features"], file["labels"], file["is_held_out"]), file["classes"].tolist()
    print(f"real emoji held out: {real.accuracy:.1%} recognised, {real.accuracy_by_class:.1%} by class")
    samples = read_samples(folder / scheduler, settings)
    num_images = len(samples[UNMERGED][0])
    images_per_class = num_images // len(classes)
    counts = draw_counts(len(classes), images_per_class, NUM_RESAMPLES if images_per_class > 1 else 0)
    measured = {
        setting: Sample(real, features, images_per_class).measure(counts) for setting, (features, _) in samples.items()
    }
    seconds = {
        row["setting"]: float(row["seconds"]) for row in read_table(seconds_file)
        if row["scheduler"] == scheduler
    }  # fmt: skip
    rows = []
    for setting, values in measured.items():
        psnr = samples[setting][1]
        row = {"setting": setting, "images": str(num_images), "seconds": "", "psnr": "", "lowest": ""}
        if setting in seconds:
            row["seconds"] = f"{seconds[setting]:.2f}"
        if setting != UNMERGED:
            row |= {"psnr": f"{np.median(psnr):.1f}", "lowest": f"{psnr.min():.1f}"}
        row |= {name: f"{values[name][0]:.3f}" for name in MEASURES}
        unmerged = None if setting == UNMERGED else measured[UNMERGED]
        row |= describe_differences(values, unmerged, images_per_class, "than unmerged")
        if other is None:
            fewer = row["fewer steps at its cost"] = find_fewer_steps(setting, seconds)
            row |= describe_differences(values, measured.get(fewer), images_per_class, "than fewer steps")
        else:
            compared = None if setting == other else measured[other]
            row |= describe_differences(values, compared, images_per_class, f"than {other}")
        rows.append(row)
    return rows


def describe_differences(
    values: dict[str, np.ndarray], other: dict[str, np.ndarray] | None, images_per_class: int, than: str
) -> dict[str, str]:
    """Return each measure's difference between two settings, and the verdict."""
    if other is None:
        return dict.fromkeys([*(f"{name} {than}" for name in MEASURES), f"verdict {than}"], "")
    found = compare(values, other, images_per_class)
    row = {f"{name} {than}": f"{d.value:+.3f} ({d.low:+.3f} to {d.high:+.3f})" for name, d in found.items()}
    return row | {f"verdict {than}": judge(found)}


def find_fewer_steps(setting: str, seconds: dict[str, float]) -> str:
    """Return the most of ``FEWER`` steps within a setting's cost, or ""."""
    if setting == UNMERGED or setting in FEWER or setting not in seconds:
        return ""
    cheaper = (each for each in FEWER if seconds.get(each, np.inf) <= SAME_COST * seconds[setting])
    return next(cheaper, "")


def format_markdown(rows: Sequence[dict[str, str]]) -> str:
    """Format the differences to unmerged images and to others as two tables in Markdown."""
    tables = []
    for than in (name.removeprefix("verdict ") for name in rows[0] if name.startswith("verdict ")):
        more = ("seconds", "psnr", "lowest", *MEASURES) if than == "than unmerged" else ()
        more += ("fewer steps at its cost",) if than == "than fewer steps" else ()
        names = ["setting", *more, *(f"{name} {than}" for name in MEASURES), f"verdict {than}"]
        lines = [names, ["---", *["---:"] * (len(names) - 1)]]
        lines += [[row[name] for name in names] for row in rows if than == "than unmerged" or row[f"verdict {than}"]]
        tables.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(tables)


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


def draw_picture(scheduler: str, folder: Path, settings: Sequence[str]) -> Image.Image:
    """Draw eight classes, a column for each, with each setting."""
    from PIL import Image, ImageDraw

    from benchmarks.step_caches import list_emoji_classes

    classes, margin, top = list_emoji_classes(), 250, 50
    drawn = {setting: np.load(folder / scheduler / setting / "0.npy") for setting in settings}
    side = drawn[settings[0]].shape[1]
    sheet = Image.new("RGB", (margin + len(DRAWN_CLASSES) * side, top + len(drawn) * side), "white")
    for column, name in enumerate(DRAWN_CLASSES):
        place = margin + (column + 0.5) * side, top / 2
        ImageDraw.Draw(sheet).text(place, name, fill="black", anchor="mm", font_size=36)
    for row, (setting, images) in enumerate(drawn.items()):
        place = margin - 14, top + (row + 0.5) * side
        ImageDraw.Draw(sheet).text(place, setting, fill="black", anchor="rm", font_size=36)
        for column, name in enumerate(DRAWN_CLASSES):
            image = Image.fromarray(images[classes.index(name)])
            sheet.paste(image, (margin + column * side, top + row * side))
    return sheet


def main(argv: Sequence[str] | None = None) -> None:
    from benchmarks.step_caches import list_emoji_classes

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands: Any = parser.add_subparsers(dest="command", required=True)
    by_scheduler, paths = argparse.ArgumentParser(add_help=False), {}
    by_scheduler.add_argument("--scheduler", choices=(*SCHEDULERS, "dpmsolver++"), default="ddim")
    for name, names in {"generate": ["output"], "seconds": [], "table": ["features", "real"],
                        "picture": ["images", "output"], "compare": ["images", "other"]}.items():  # fmt: skip
        paths[name] = commands.add_parser(name, parents=[by_scheduler])
        for each in names:
            paths[name].add_argument(f"--{each}", type=Path, required=True)
    paths["generate"].add_argument("--seeds", type=int, nargs=2, default=[0, 12], metavar=("FIRST", "END"))
    paths["seconds"].add_argument("--rounds", type=int, default=5)
    paths["seconds"].add_argument("--output", type=Path, default=FOLDER / "seconds.csv", help="(%(default)s)")
    for name in ("generate", "seconds"):
        paths[name].add_argument("--model", default="emoji", metavar="FOLDER", help="of emoji (%(default)s)")
        paths[name].add_argument("--guidance", type=float, default=7.5)
        paths[name].add_argument("--enlarge", type=Path, metavar="FOLDER", help="of drawings, SEED.npy, to draw again")
        paths[name].add_argument("--strength", type=float, default=0.6, help="of drawing again (%(default)s)")
        paths[name].add_argument("--compile", choices=PRECISIONS, help="let OpenVINO compute in it")
    paths["table"].add_argument("--seconds", type=Path, default=FOLDER / "seconds.csv", help="(%(default)s)")
    paths["table"].add_argument("--other", metavar="NAME", help="(for each the most steps that cost no more)")
    for name in ("generate", "seconds", "table", "picture"):
        settings = DRAWN_SETTINGS if name == "picture" else SETTINGS
        paths[name].add_argument("--settings", nargs="+", default=settings, metavar="NAME")
    paths["generate"].add_argument("--classes", nargs="+", default=list_emoji_classes(), metavar="NAME", help="(all)")
    paths["table"].add_argument("--output", type=Path, default=FOLDER)
    commands.add_parser("texts").add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    if getattr(args, "compile", None) and args.settings is SETTINGS:
        args.settings = [setting for setting in SETTINGS if setting != "cache=0.2"]  # which no program computes
    if args.command == "table":
        chosen = {"settings": args.settings, "seconds_file": args.seconds, "other": args.other}
        rows = make_table(args.scheduler, args.features, args.real, **chosen)
        write_table(args.output / f"{args.scheduler}.csv", rows)
        print(format_markdown(rows))
    elif args.command == "picture":
        draw_picture(args.scheduler, args.images, args.settings).save(args.output, quality=90)
    elif args.command == "compare":
        compare_images(args.scheduler, args.images, args.other)
    else:
        from benchmarks.pages import prepare

        prepare()
        if args.command == "generate":
            generate(args)
        elif args.command == "texts":
            write_texts(args.output)
        else:
            time_images(args)


if __name__ == "__main__":
    main()

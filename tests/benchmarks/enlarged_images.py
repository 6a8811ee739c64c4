"""Make enlarged emoji of each setting of ``quality.py``: drawn at 128 pixels, drawn again at 256 by img2img.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.enlarged_images generate --output outputs/enlarged
    PYTHONPATH=tests python -m benchmarks.enlarged_images seconds --output outputs/enlarged

It is what people call a hires fix. The model was trained at 256 pixels (docs/en/developers/emoji-model.md), and its
finest level has 4,096 tokens there. The drawings come from ``examples/models/emoji``, unmerged, 20 steps with
DDIM, and are the same for every setting. ``generate`` writes SCHEDULER/SETTING/SEED.npy as ``quality.py`` does, and
resumes; processes may have seeds of their own. With ``--drawn`` it enlarges what it made before, to 512 pixels.
``seconds`` times the second drawing in turns on a quiet machine and writes seconds-SCHEDULER.csv. OpenVINO computes all
of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality import (
    FEWER,
    MERGED,
    UNMERGED,
    load_model,
    make_variant,
    save_images,
    time_in_turns,
    write_table,
)  # fmt: skip

SCHEDULERS = ("ddim", "dpmsolver++")
# With a cache a pipeline is not compiled.
SETTINGS = (UNMERGED, *MERGED, *FEWER, "6 steps", "balanced, 12 steps", "balanced, use_rand=False")
DRAWN_SIDE, DRAWN_GUIDANCE = 128, 7.5


def load_models(folder: Path, scheduler: str, precision: str) -> tuple[Any, Any]:
    """Load the model that draws, and a StableDiffusionImg2ImgPipeline of one that draws again."""
    from ppdiffusers import StableDiffusionImg2ImgPipeline

    from ppdiffusers_tome.compilation.api import compile_cpu
    from ppdiffusers_tome.tools.generation.model_sources import find_model
    from ppdiffusers_tome.tools.generation.pipeline_files import load_pipeline
    from ppdiffusers_tome.tools.generation.schedulers import make_scheduler

    drawing, loaded = load_model("ddim", "float32"), load_pipeline(find_model(str(folder)))
    loaded.scheduler = make_scheduler(scheduler, loaded.scheduler.config)
    pipe = StableDiffusionImg2ImgPipeline(**loaded.components, requires_safety_checker=False)
    pipe.set_progress_bar_config(disable=True)
    return drawing, compile_cpu(pipe, precision)


def draw(model: Any, args: argparse.Namespace, seed: int) -> np.ndarray:
    """Return uint8 drawings of all classes, ``[33, side, side, 3]``, which a file keeps."""
    from benchmarks.step_caches import list_emoji_classes

    path = (args.drawn or args.output / "drawn") / f"{seed}.npy"
    if not path.exists() and args.drawn is None:
        save_images(path, np.stack([
            np.asarray(model.generate(name, 20, seed=seed, guidance=DRAWN_GUIDANCE, size=DRAWN_SIDE))
            for name in list_emoji_classes()
        ]))  # fmt: skip
    return np.load(path)


def enlarge(pipe: Any, name: str, drawing: np.ndarray, seed: int, steps: int, args: argparse.Namespace) -> np.ndarray:
    """Draw an enlarged image again, from the noise of its seed."""
    import paddle
    from PIL import Image

    paddle.seed(seed)
    image = Image.fromarray(drawing)
    image = image.resize((2 * image.width, 2 * image.height), Image.Resampling.BICUBIC)
    found = pipe(
        prompt=name, image=image, strength=args.strength, num_inference_steps=steps, guidance_scale=args.guidance
    )
    return np.asarray(found.images[0])


def apply(pipe: Any, setting: str) -> int:
    """Apply a setting in place of all others, and return its steps."""
    from benchmarks.step_caches import apply_variant

    variant = make_variant(setting)
    apply_variant(pipe, variant)
    return variant.steps


def generate(args: argparse.Namespace) -> None:
    """Write the images that are missing, seed by seed, so that settings keep pace."""
    from benchmarks.step_caches import list_emoji_classes

    drawing, pipe = load_models(args.model, args.scheduler, args.compile)
    for seed, setting in product(range(*args.seeds), args.settings):
        path = args.output / args.scheduler / setting / f"{seed}.npy"
        if not path.exists():
            drawn, steps = draw(drawing, args, seed), apply(pipe, setting)
            pairs = [pair for pair in zip(list_emoji_classes(), drawn, strict=True) if pair[0] in args.classes]
            save_images(path, np.stack([enlarge(pipe, name, image, seed, steps, args) for name, image in pairs]))
            print(path, flush=True)


def measure_seconds(args: argparse.Namespace) -> None:
    """Time the second drawing of an image with each setting in turn."""
    from benchmarks.timing import measure_seconds

    drawing, pipe = load_models(args.model, args.scheduler, args.compile)
    drawn = draw(drawing, args, 0)[0]

    def time_image(setting: str) -> float:
        steps = apply(pipe, setting)
        run: Callable[[], Any] = lambda: enlarge(pipe, "face", drawn, 0, steps, args)  # noqa: E731
        run()  # which may compile
        return measure_seconds(run)

    turns = {setting: lambda setting=setting: time_image(setting) for setting in args.settings}
    rows = time_in_turns(args.scheduler, turns, args.rounds)
    write_table(args.output / f"seconds-{args.scheduler}.csv", rows)


def main(argv: Sequence[str] | None = None) -> None:
    from benchmarks.pages import prepare
    from benchmarks.step_caches import list_emoji_classes

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("generate", "seconds"))
    parser.add_argument("--model", type=Path, default=Path("tests/models/emoji-256"))
    parser.add_argument("--scheduler", choices=SCHEDULERS, default="ddim")
    parser.add_argument("--compile", choices=("float32", "bfloat16"), default="float32", help="of the second drawing")
    parser.add_argument("--settings", choices=SETTINGS, nargs="+", default=SETTINGS, metavar="NAME")
    parser.add_argument("--drawn", type=Path, metavar="FOLDER", help="of SEED.npy to enlarge, as OUTPUT/ddim/unmerged")
    parser.add_argument("--classes", nargs="+", default=list_emoji_classes(), metavar="NAME", help="(all)")
    parser.add_argument("--strength", type=float, default=0.6)
    parser.add_argument("--guidance", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, nargs=2, default=[0, 12], metavar=("FIRST", "END"), help="(0 12)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    prepare()
    (generate if args.command == "generate" else measure_seconds)(args)


if __name__ == "__main__":
    main()

"""Measure merging and the cache over steps against fewer steps.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.step_caches alone photographs guided --scheduler ddim
    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.step_caches images photographs guided --scheduler ddim
    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.step_caches costs photographs
    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.step_caches skipped
    PYTHONPATH=tests python -m benchmarks.step_caches table

``alone`` adds the PSNR of images of which one step alone is skipped to alone.jsonl in docs/measured/step_caches, of two
seeds that ``images`` does not have. ``images`` adds the PSNR of each setting and image to images.jsonl and resumes;
other work on the machine changes nothing. ``costs`` times the kinds of steps in turn on a quiet machine. ``table``
writes regimes.csv: the median and lowest PSNR of each setting in each regime, and that of fewer steps at its cost.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.step_schedule import CLASS_TRANSFORMER, UNET, choose_computed_steps

FOLDER = Path("docs/measured/step_caches")
PROMPTS = {
    "photographs": [
        "a photo of a cat", "a photo of an astronaut", "a photo of a rocket", "a photo of a cup of coffee",
        "a photo of a motorcycle", "a photo of galaxies",
    ],
    "dit": ["cat", "astronaut", "rocket", "coffee", "motorcycle", "galaxies"],
    "emoji": ["face", "bird", "car", "flower", "person", "clock"],
    "emoji-dit": ["face", "bird", "car", "flower", "person", "clock"],
}  # fmt: skip
FAMILIES = {"photographs": UNET, "dit": CLASS_TRANSFORMER, "emoji": UNET, "emoji-dit": CLASS_TRANSFORMER}
# At the smaller size a UNet's image takes an eighth of the time.
SIZES = {"photographs": 256, "dit": 512, "emoji": 128, "emoji-dit": 128}
EMOJI_DIT = Path("tests/models/emoji-dit")
NUM_IMAGES = 6
OTHER_SEEDS = (100, 101)


@dataclass(frozen=True)
class Regime:
    """The guidance of an image, and whether anything is asked for.

    Attributes:
        guidance: by family.
        is_open: True where nothing is asked for, so that the early steps decide what the image shows.
    """

    guidance: Mapping[str, float]
    is_open: bool = False


REGIMES = {
    "known": Regime({UNET: 1.5, CLASS_TRANSFORMER: 1.5}),
    "guided": Regime({UNET: 7.5, CLASS_TRANSFORMER: 4.0}),
    "less guided": Regime({UNET: 5.0, CLASS_TRANSFORMER: 2.5}),
    "open": Regime({UNET: 1.0, CLASS_TRANSFORMER: 1.0}, is_open=True),
    "every class": Regime({UNET: 7.5, CLASS_TRANSFORMER: 4.0}),  # of emoji, one image each
}
BALANCED = ToMeConfig.preset("balanced")
BEST_TOKENS = replace(BALANCED, end=0.9)  # which keep most at their speed in a UNet
TOKENS = {
    "tome 0.5": ToMeConfig(0.5), "quality": ToMeConfig.preset("quality"), "balanced": BALANCED,
    "keys 0.5": ToMeConfig(0.5, method="keys"),
}  # fmt: skip
PARTS = {
    "balanced, end 0.5": replace(BALANCED, end=0.5), "balanced, start 0.3": replace(BALANCED, start=0.3),
    "balanced, start 0.5": replace(BALANCED, start=0.5), "quality, start 0.3": replace(TOKENS["quality"], start=0.3),
    "keys 0.5, start 0.3": replace(TOKENS["keys 0.5"], start=0.3),
}  # fmt: skip
SHARES = (0.2, 0.3, 0.5)
UNMERGED, FEWER = "unmerged", "fewer steps"
_CHOICE = "ppdiffusers_tome.patching.step_cache.cached_call"  # which asks for the skipped steps of a denoising


@dataclass(frozen=True)
class Variant:
    """One way to generate an image faster.

    Attributes:
        name, group: what pages call it.
        config: settings; None for the model as it is.
        steps: of the denoising.
    """

    name: str
    group: str
    config: ToMeConfig | None
    steps: int


def list_variants(model: str, steps: int) -> list[Variant]:
    """List the variants of a denoising with so many steps, the most important first."""
    tokens, whole = BEST_TOKENS, ToMeConfig(0.0)
    counts = [round((1 - share) * steps) for share in SHARES]
    fewer = sorted({*counts, round(0.6 * steps)}, reverse=True)
    variants = [Variant(f"{count} steps", FEWER, None, count) for count in fewer]
    variants += [Variant(f"cache {share}", "cache", replace(whole, cache=share), steps) for share in SHARES]
    if FAMILIES[model] == UNET:
        variants.append(Variant("best tokens", "best tokens", tokens, steps))
        variants += [Variant(f"{count} steps, best tokens", f"{FEWER}, best tokens", tokens, count) for count in fewer]
        for share in SHARES[:2]:
            config = replace(tokens, cache=share)
            variants.append(Variant(f"best tokens, cache {share}", "tokens and cache", config, steps))
        variants += [Variant(name, "tokens in some steps", config, steps) for name, config in PARTS.items()]
    return variants + [Variant(name, "tokens", config, steps) for name, config in TOKENS.items()]


class Model:
    """A model, ready to generate; by Paddle with onnxruntime's kernels, or to be compiled."""

    def __init__(self, name: str, scheduler: str, *, uses_kernels: bool = True) -> None:
        from benchmarks.onnx_kernels import use_kernels
        from ppdiffusers_tome.patching.models import list_models
        from ppdiffusers_tome.tools.generation.loading import load_pipeline, make_scheduler
        from ppdiffusers_tome.tools.generation.settings import SCHEDULERS

        self.name = name
        self.pipe = load_pipeline(_find_source(name))
        self.pipe.scheduler = make_scheduler(SCHEDULERS[scheduler], self.pipe.scheduler.config)
        self.pipe.set_progress_bar_config(disable=True)
        for _, model in list_models(self.pipe, denoisers_only=False) if uses_kernels else ():
            use_kernels(model)
        self.denoiser = getattr(self.pipe, "unet", None) or self.pipe.transformer

    def apply(self, variant: Variant) -> None:
        """Apply the settings of a variant in place of all others."""
        apply_variant(self.pipe, variant)

    def generate(self, prompt: str, steps: int, *, seed: int = 0, guidance: float = 1.5, size: int = 512) -> Any:
        """Generate an image; of a transformer, the prompt \"\" is that of no class."""
        from ppdiffusers_tome.tools.generation import sampling

        if not prompt and FAMILIES[self.name] == CLASS_TRANSFORMER:  # the number behind the last class
            noise = sampling.make_initial_noise(self.pipe, size, size, seed)
            return sampling._generate_class(
                self.pipe, noise, lambda: None, class_labels=[self.denoiser.config.num_embeds_ada_norm],
                num_inference_steps=steps, guidance_scale=guidance,
            )  # fmt: skip
        return sampling.generate_image(
            self.pipe, prompt, seed=seed, height=size, width=size, steps=steps, guidance_scale=guidance
        )


def apply_variant(pipe: Any, variant: Variant) -> None:
    """Apply the settings of a variant to a pipeline in place of all others."""
    from ppdiffusers_tome import apply_tome, remove_tome

    remove_tome(pipe)
    if variant.config is not None:
        apply_tome(pipe, variant.config)


def _find_source(name: str) -> Any:
    from ppdiffusers_tome.tools.generation.models import find_model

    return find_model(str(EMOJI_DIT) if name == "emoji-dit" else name)


def list_images(model: str, regime: str, count: int) -> list[tuple[str, int]]:
    """List the prompts and seeds of a regime."""
    prompts: Sequence[str] = list_emoji_classes() if regime == "every class" else PROMPTS[model]
    return [("" if REGIMES[regime].is_open else prompts[number % len(prompts)], number) for number in range(count)]


def list_emoji_classes() -> list[str]:
    """List the classes in the order of the training."""
    _let_training_scripts_be_imported()
    from emoji import CLASSES  # type: ignore[import-not-found]

    return list(CLASSES)


def _let_training_scripts_be_imported() -> None:
    if "examples/train_demo_models" not in sys.path:
        sys.path.append("examples/train_demo_models")


def measure_alone(model: str, regime: str, scheduler: str, steps: int) -> None:
    """Append the PSNR of skipping one step alone, for each after the first."""
    from unittest.mock import patch

    import numpy as np

    from ppdiffusers_tome.tuning.similarity import compute_psnr

    loaded, psnrs = Model(model, scheduler), []
    where = {"guidance": REGIMES[regime].guidance[FAMILIES[model]], "size": SIZES[model]}
    prompts = list_images(model, regime, len(PROMPTS[model]))
    for number, seed in enumerate(OTHER_SEEDS, 1):
        images = []
        for skipped in range(steps):  # of the first, which has nothing to follow, none
            loaded.apply(Variant("", "", ToMeConfig(0.0, cache=0.2) if skipped else None, steps))
            with patch(f"{_CHOICE}.choose_skipped_steps", lambda *_, step=skipped: frozenset([step])):
                images.append(np.asarray(loaded.generate(prompts[number][0], steps, seed=seed, **where)))
        psnrs.append([round(min(compute_psnr(images[0], image), 100.0), 1) for image in images[1:]])
    append_row(FOLDER / "alone.jsonl", {
        "model": model, "regime": regime, "scheduler": scheduler, "of": steps, "skipped alone": psnrs,
    })  # fmt: skip


def measure_images(
    model: str, regime: str, scheduler: str, steps: int, num_images: int, variants: Sequence[Variant], path: Path, *,
    size: int | None = None,
) -> None:  # fmt: skip
    """Append the missing PSNRs of images, and their likeness to the subject."""
    import numpy as np

    from ppdiffusers_tome.tuning.similarity import compute_psnr

    case = {"model": model, "regime": regime, "scheduler": scheduler, "of": steps, "size": size or SIZES[model]}
    done = {tuple(row.get(name) for name in (*case, "prompt", "seed", "name")) for row in read_rows(path)}
    loaded, guidance = Model(model, scheduler), REGIMES[regime].guidance[FAMILIES[model]]
    where = {"guidance": guidance, "size": case["size"]}
    for prompt, seed in list_images(model, regime, num_images):
        reference, likeness = None, None
        for variant in variants:
            if (*case.values(), prompt, seed, variant.name) in done or variant.name == UNMERGED:
                continue
            if reference is None:
                loaded.apply(Variant(UNMERGED, UNMERGED, None, steps))
                reference = np.asarray(loaded.generate(prompt, steps, seed=seed, **where))
                likeness = compute_likeness(model, reference, prompt)
            loaded.apply(variant)
            pixels = np.asarray(loaded.generate(prompt, variant.steps, seed=seed, **where))
            row = {**case, "prompt": prompt, "seed": seed, "name": variant.name, "group": variant.group, **where,
                   "psnr": round(compute_psnr(reference, pixels), 2),
                   "likeness": compute_likeness(model, pixels, prompt), "unmerged likeness": likeness,
                   "kinds": count_kinds(variant, model)}  # fmt: skip
            append_row(path, row)


def compute_likeness(model: str, pixels: Any, prompt: str) -> float | None:
    """Return the similarity of an image to its prompt's photograph.

    Without a prompt it is that to the most similar; without photographs None.
    """
    if model.startswith("emoji"):
        return None
    _let_training_scripts_be_imported()
    from recognition import subject_similarities  # type: ignore[import-not-found]

    similarities = subject_similarities(pixels)
    subject = next((name for name in similarities if name in prompt.split()), None)
    return round(max(similarities.values()) if subject is None else similarities[subject], 3)


def count_kinds(variant: Variant, model: str) -> dict[str, int]:
    """Count the steps of each kind: whole, merged with which settings, skipped."""
    config, steps = variant.config, variant.steps
    if config is None:
        return {"whole": steps}
    computed = frozenset(range(steps))
    if config.cache:
        computed = choose_computed_steps(
            steps, config.cache, FAMILIES[model], predicts_noise=model.startswith("emoji")
        )
    merged = sum(config.ratio_at(step / steps) > 0 for step in computed)
    tokens = replace(config, cache=0.0, start=0.0, end=1.0).summary
    kinds = {"whole": len(computed) - merged, tokens: merged, "skipped": steps - len(computed)}
    return {kind: count for kind, count in kinds.items() if count}


def measure_costs(model: str, rounds: int) -> None:
    """Append the seconds of each kind of step, and of everything else."""
    loaded, steps, share = Model(model, "ddim"), 10, 0.5
    computed = choose_computed_steps(steps, share, FAMILIES[model], predicts_noise=model.startswith("emoji"))
    skipping = ToMeConfig(0.0, cache=share)
    turns = {"whole": Variant("whole", "", None, steps), "skipped": Variant("skipped", "", skipping, steps)}
    for config in [*TOKENS.values(), BEST_TOKENS]:
        turns[replace(config, end=1.0).summary] = Variant("tokens", "", replace(config, end=1.0), steps)
    seconds: dict[str, list[float]] = {}
    times: list[float] = []
    before = loaded.denoiser.register_forward_pre_hook(lambda *_: times.append(-time.perf_counter()))
    after = loaded.denoiser.register_forward_post_hook(lambda *_: times.append(times.pop() + time.perf_counter()))
    for number in range(rounds + 1):
        for kind, variant in turns.items():
            times.clear()
            loaded.apply(variant)
            start = time.perf_counter()
            loaded.generate(PROMPTS[model][0], variant.steps, size=512 if model == "photographs" else SIZES[model])
            rest = time.perf_counter() - start - sum(times)
            if number == 0:  # the first image of each kind is slower
                continue
            own = {*range(1, steps)} - (computed if kind == "skipped" else set())
            seconds.setdefault(kind, []).extend(times[step] for step in own)
            if kind == "whole":
                seconds.setdefault("everything but the denoiser", []).append(rest)
    before.remove()
    after.remove()
    append_row(FOLDER / "costs.jsonl", {
        "model": model, "rounds": rounds, "machine": _describe_machine(),
        "seconds": {kind: round(statistics.median(values), 4) for kind, values in seconds.items()},
    })  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A setting in a regime, beside fewer steps at its cost.

    Attributes:
        cost: seconds of the denoiser's calls, as a part of those of the unmerged image.
        psnr, lowest: median and lowest, in dB.
        likeness: the median change of how well images show their subject; None where it is not measured.
        fewer, fewer_psnr, fewer_lowest: the best of fewer steps that costs at most 3% more.
    """

    name: str
    cost: float
    psnr: float
    lowest: float
    likeness: float | None
    num_images: int
    fewer: str = ""
    fewer_psnr: float | None = None
    fewer_lowest: float | None = None


def read_points() -> dict[tuple[str, ...], list[Point]]:
    """Return the points by model, regime, guidance, size, scheduler and steps."""
    seconds = {row["model"]: row["seconds"] for row in read_rows(FOLDER / "costs.jsonl")}  # the last of each model
    cases: dict[tuple[str, ...], dict[str, list[dict[str, Any]]]] = {}
    for row in read_rows(FOLDER / "images.jsonl"):
        case = (
            row["model"], row["regime"], f"{row['guidance']:g}", str(row["size"]), row["scheduler"], str(row["of"])
        )  # fmt: skip
        cases.setdefault(case, {}).setdefault(row["name"], []).append(row)
    return {case: list(_list_points(rows, seconds[case[0]], int(case[-1]))) for case, rows in cases.items()}


def _list_points(rows: Mapping[str, list[dict[str, Any]]], seconds: Mapping[str, float], steps: int) -> Iterator[Point]:
    points, fewer = [], []
    for name, own in rows.items():
        psnrs = [row["psnr"] for row in own]
        spent = sum(count * seconds[kind] for kind, count in own[0]["kinds"].items())
        changes = [row["likeness"] - row["unmerged likeness"] for row in own if row["likeness"] is not None]
        likeness = statistics.median(changes) if changes else None
        point = Point(name, spent / steps / seconds["whole"], statistics.median(psnrs), min(psnrs), likeness, len(own))
        (fewer if own[0]["group"].startswith(FEWER) else points).append(point)
    for point in points:
        as_cheap = [each for each in fewer if each.cost <= point.cost * 1.03]
        best = max(as_cheap, key=lambda each: each.psnr, default=None)
        yield point if best is None else replace(
            point, fewer=best.name, fewer_psnr=best.psnr, fewer_lowest=best.lowest
        )  # fmt: skip
    yield from fewer


def make_table() -> str:
    """Return all points as CSV."""
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((
        "model", "regime", "guidance", "size", "scheduler", "steps", "setting", "speed-up of the denoiser", "psnr",
        "lowest", "likeness", "images", "fewer steps", "their psnr", "their lowest",
    ))  # fmt: skip
    for case, points in sorted(read_points().items()):
        for point in sorted(points, key=lambda point: -point.cost):
            numbers = (
                f"{1 / point.cost:.2f}", f"{point.psnr:.1f}", f"{point.lowest:.1f}",
                "" if point.likeness is None else f"{point.likeness:+.3f}",
            )  # fmt: skip
            beside = ("", "", "")
            if point.fewer_psnr is not None and point.fewer_lowest is not None:
                beside = (point.fewer, f"{point.fewer_psnr:.1f}", f"{point.fewer_lowest:.1f}")
            writer.writerow((*case, point.name, *numbers, point.num_images, *beside))
    return text.getvalue()


def measure_skipped_step() -> None:
    """Print a skipped step's cost beyond the layers that run.

    It is of Stable Diffusion 1.5's UNet with random weights.
    """
    import numpy as np
    import paddle
    import ppdiffusers

    import tiny
    from ppdiffusers_tome import apply_tome

    unet = ppdiffusers.UNet2DConditionModel(cross_attention_dim=768, sample_size=64)
    unet.eval()
    finest = unet.down_blocks[0], unet.up_blocks[-1]
    layers = [unet.conv_in, unet.time_embedding, unet.conv_norm_out, unet.conv_act, unet.conv_out]
    layers += [layer for block in finest for layer in block.resnets]
    for attention in (layer for block in finest for layer in block.attentions):
        layers += [attention.norm, attention.proj_in, attention.proj_out]
    layers += unet.down_blocks[0].downsamplers
    inside: list[float] = []
    for layer in layers:
        layer.register_forward_pre_hook(lambda *_: inside.append(-time.perf_counter()))
        layer.register_forward_post_hook(lambda *_: inside.append(inside.pop() + time.perf_counter()))
    latent, text, seconds = paddle.randn([1, 4, 64, 64]), paddle.randn([1, 77, 768]), []

    def call(unet: Any, number: int, timestep: float) -> Any:
        inside.clear()
        start = time.perf_counter()
        unet(latent, timestep, text)
        seconds.append((time.perf_counter() - start, sum(inside)))
        return np.zeros(1)

    pipe = apply_tome(tiny.Sampler(unet, ppdiffusers.DDIMScheduler()), 0, cache=0.9)
    pipe(call, 9)
    report = pipe.tome.entries[0].last_image
    skipped = [seconds[step] for step in range(9) if step not in report.computed_steps]
    share = statistics.median(total for total, _ in skipped) / seconds[8][0]
    above = statistics.median(total / layers - 1 for total, layers in skipped)
    print(f"a skipped step takes {share:.3f} of a whole one, {above:.2%} above its layers; {report}")


def _describe_machine() -> dict[str, Any]:
    from ppdiffusers_tome.tools.measure.system import describe_machine

    return describe_machine()


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("alone", "images", "costs"):
        command = commands.add_parser(name)
        command.add_argument("model", choices=list(PROMPTS))
        if name == "costs":
            command.add_argument("--rounds", type=int, default=3)
            continue
        command.add_argument("regime", choices=list(REGIMES))
        command.add_argument("--steps", type=int, default=20)
        command.add_argument("--scheduler", default="ddim")
        if name == "images":
            command.add_argument("--images", type=int, default=NUM_IMAGES)
            command.add_argument("--only", nargs="*", default=[], metavar="NAME", help="groups or names of settings")
            command.add_argument("--size", type=int)
    commands.add_parser("table")
    commands.add_parser("skipped")
    args = parser.parse_args(argv)
    if args.command == "table":
        (FOLDER / "regimes.csv").write_text(make_table(), encoding="utf-8")
        return
    from benchmarks.pages import prepare

    prepare()
    if args.command == "alone":
        measure_alone(args.model, args.regime, args.scheduler, args.steps)
    elif args.command == "images":
        variants = list_variants(args.model, args.steps)
        variants = [variant for variant in variants if not args.only or {variant.group, variant.name} & {*args.only}]
        path = FOLDER / "images.jsonl"
        measure_images(
            args.model, args.regime, args.scheduler, args.steps, args.images, variants, path, size=args.size
        )
    elif args.command == "skipped":
        measure_skipped_step()
    else:
        measure_costs(args.model, args.rounds)


if __name__ == "__main__":
    main()

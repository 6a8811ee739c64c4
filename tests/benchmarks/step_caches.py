"""Measure the cache over steps with and without merging, against fewer steps, on a bundled model.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.step_caches images bundled --steps 20 --scheduler ddim
    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.step_caches costs bundled
    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.step_caches skipped
    PYTHONPATH=tests python -m benchmarks.step_caches pages

``images`` adds the PSNR of each setting and prompt to docs/measured/step_caches/images.jsonl and resumes; other work on
the machine changes nothing. ``costs`` times the kinds of steps in turn on a quiet machine, into costs.jsonl. The
speed-ups of ``pages`` follow from both: seconds of whole runs move by a fifth between two runs of the same settings.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.step_schedule import choose_computed_steps

FOLDER = Path("docs/measured/step_caches")
PLOT = Path("docs/images/step-caches.png")
PROMPTS = {
    "bundled": ["a photo of a cat", "a photo of an astronaut", "a photo of a rocket", "a photo of a cup of coffee"],
    "bundled-dit": ["cat", "astronaut", "rocket", "coffee"],
}
# The tokens that keep most at their speed, see docs/en/results/fidelity.md.
BEST_TOKENS = {
    "bundled": replace(ToMeConfig.preset("balanced"), end=0.9),
    "bundled-dit": ToMeConfig(0.6, tile=8, proportional=True, end=0.9),
}
TOKENS = {
    "tome 0.5": ToMeConfig(0.5), "quality": ToMeConfig.preset("quality"), "balanced": ToMeConfig.preset("balanced"),
    "keys 0.5": ToMeConfig(0.5, method="keys"),
}  # fmt: skip
UNMERGED, CACHE, FEWER = "unmerged", "cache", "fewer steps"
DEEPCACHE = "DeepCache"


@dataclass(frozen=True)
class Variant:
    """One way to generate an image faster.

    Attributes:
        name, group: what pages call it.
        config: settings; None for the model as it is.
        steps: of the denoising.
        coarse_only: skip the coarse levels of a UNet alone, as DeepCache does.
    """

    name: str
    group: str
    config: ToMeConfig | None
    steps: int
    coarse_only: bool = False


def list_variants(model: str, steps: int) -> list[Variant]:
    """List the variants of a denoising with so many steps, the unmerged one first."""
    tokens, whole = BEST_TOKENS[model], ToMeConfig(0.0)
    variants = [Variant(UNMERGED, UNMERGED, None, steps)]
    variants += [Variant(name, "tokens", config, steps) for name, config in TOKENS.items()]
    variants.append(Variant("best tokens", "tokens", tokens, steps))
    for cache in (0.3, 0.4, 0.5, 0.6, 0.7):
        variants.append(Variant(f"cache {cache}", CACHE, replace(whole, cache=cache), steps))
        variants.append(Variant(f"best tokens, cache {cache}", "tokens and cache", replace(tokens, cache=cache), steps))
    if model == "bundled":  # steps that run unmerged at the end cost time and keep detail
        for end, cache in [*((0.8, cache) for cache in (0.0, 0.3, 0.4, 0.5, 0.6)), (1.0, 0.6), (1.0, 0.65), (1.0, 0.7)]:
            config = replace(tokens, end=end, cache=cache)
            name = f"balanced{f', end {end}' if end < 1 else ''}{f', cache {cache}' if cache else ''}"
            variants.append(Variant(name, "tokens and cache" if cache else "tokens", config, steps))
    for interval in (2, 3):
        computed = tuple(sorted({1, *range(0, steps, interval)}))
        # Steps after the last computed one are computed too, so the list ends at the last step.
        name, config = f"every {interval}", replace(whole, cache=(*computed[:-1], max(computed[-1], steps - 1)))
        variants.append(Variant(name, "fixed interval", config, steps))
        if model == "bundled":
            variants.append(Variant(f"{DEEPCACHE}, {name}", DEEPCACHE, replace(config, cache_slope=0.0), steps, True))
    for name, computed in _list_placements(steps).items():
        variants.append(Variant(f"cache 0.5, {name}", "placement", replace(whole, cache=computed), steps))
    for fraction in (0.8, 0.6, 0.5, 0.4, 0.3):
        fewer = round(fraction * steps)
        variants.append(Variant(f"{fewer} steps", FEWER, None, fewer))
        variants.append(Variant(f"{fewer} steps, best tokens", f"{FEWER}, best tokens", tokens, fewer))
    return variants


def _list_placements(steps: int) -> dict[str, tuple[int, ...]]:
    """List half of the steps, placed otherwise than the package does."""
    positions = [number / (steps // 2 - 1) for number in range(steps // 2)]
    both_ends = [position - 0.6 * math.sin(2 * math.pi * position) / (2 * math.pi) for position in positions]
    return {name: _space(places, steps) for name, places in (("even", positions), ("dense at both ends", both_ends))}


def _space(places: Sequence[float], steps: int) -> tuple[int, ...]:
    """Return steps at places from 0 to 1, all different, with the first two and the last two."""
    computed = [round(place * (steps - 1)) for place in places]
    computed[1], computed[-2] = 1, steps - 2
    for number in range(2, len(computed)):
        computed[number] = max(computed[number], computed[number - 1] + 1)
    for number in range(len(computed) - 2, 1, -1):
        computed[number] = min(computed[number], computed[number + 1] - 1)
    return tuple(computed)


class Model:
    """A bundled model, ready to generate."""

    def __init__(self, name: str, scheduler: str) -> None:
        from ppdiffusers_tome.cpu.chunked_attention import enable_chunked_attention
        from ppdiffusers_tome.tools.generation.model_loader import load_pipeline
        from ppdiffusers_tome.tools.generation.model_sources import find_model
        from ppdiffusers_tome.tools.generation.schedulers import make_scheduler

        self.pipe = load_pipeline(find_model(name), class_labels=True)
        self.pipe.scheduler = make_scheduler(scheduler, self.pipe.scheduler.config)
        self.pipe.set_progress_bar_config(disable=True)
        enable_chunked_attention(self.pipe)
        self.denoiser = getattr(self.pipe, "unet", None) or self.pipe.transformer

    def generate(self, variant: Variant, prompt: str) -> Any:
        """Generate an image with a variant."""
        from ppdiffusers_tome import apply_tome, remove_tome
        from ppdiffusers_tome.tools.generation.sampling import generate_image

        with _skip_coarse_levels_only() if variant.coarse_only else mock.MagicMock():
            remove_tome(self.pipe)
            if variant.config is not None:
                apply_tome(self.pipe, variant.config)
        return generate_image(
            self.pipe, prompt, seed=0, height=512, width=512, steps=variant.steps, guidance_scale=1.5
        )  # fmt: skip


@contextmanager
def _skip_coarse_levels_only() -> Iterator[None]:
    from ppdiffusers_tome.patching.overrides import step_cache

    with mock.patch.object(step_cache, "find_blocks", return_value=[]):
        yield


def measure_images(
    model: str, scheduler: str, steps: int, num_prompts: int, variants: Sequence[Variant], path: Path
) -> None:
    """Append the PSNR of each variant and prompt that the file lacks."""
    import numpy as np

    from ppdiffusers_tome.tuning.images import psnr

    done = {(row["model"], row["scheduler"], row["of"], row["prompt"], row["name"]) for row in read_rows(path)}
    loaded = Model(model, scheduler)
    for prompt in PROMPTS[model][:num_prompts]:
        reference = None
        for variant in variants:
            if (model, scheduler, steps, prompt, variant.name) in done:
                continue
            if reference is None:
                unmerged = Variant(UNMERGED, UNMERGED, None, steps)
                reference = np.asarray(loaded.generate(unmerged, prompt))
            if variant.name == UNMERGED:
                continue
            pixels = np.asarray(loaded.generate(variant, prompt))
            row = {"model": model, "scheduler": scheduler, "of": steps, "prompt": prompt, "name": variant.name,
                   "group": variant.group, "psnr": round(psnr(reference, pixels), 2), "kinds": _count_kinds(variant)}
            append_row(path, row)


def _count_kinds(variant: Variant) -> dict[str, int]:
    """Count the steps of each kind: whole, merged with which settings, skipped."""
    config, steps = variant.config, variant.steps
    if config is None:
        return {"whole": steps}
    computed = choose_computed_steps(steps, config.cache) if config.cache else frozenset(range(steps))
    merged = sum(config.ratio_at(1, step / steps) > 0 for step in computed)
    skipped = "coarse levels skipped" if variant.coarse_only else "skipped"
    tokens = replace(config.without_cache, start=0.0, end=1.0).summary
    kinds = {"whole": len(computed) - merged, tokens: merged, skipped: steps - len(computed)}
    return {kind: count for kind, count in kinds.items() if count}


def measure_costs(model: str, rounds: int) -> None:
    """Append the seconds of a step of each kind, and of everything but the denoiser, measured in turn."""
    loaded, steps = Model(model, "ddim"), 6
    skipping = ToMeConfig(0.0, cache=(0, 1, 3, 5))
    turns = {"whole": Variant("whole", "", None, steps), "skipped": Variant("skipped", "", skipping, steps)}
    if model == "bundled":
        turns["coarse levels skipped"] = Variant("coarse", "", skipping, steps, True)
    for config in [*TOKENS.values(), BEST_TOKENS[model]]:
        turns[replace(config, end=1.0).summary] = Variant("tokens", "", replace(config, end=1.0), steps)
    seconds: dict[str, list[float]] = {}
    times: list[float] = []
    before = loaded.denoiser.register_forward_pre_hook(lambda *_: times.append(-time.perf_counter()))
    after = loaded.denoiser.register_forward_post_hook(lambda *_: times.append(times.pop() + time.perf_counter()))
    for number in range(rounds + 1):
        for kind, variant in turns.items():
            times.clear()
            start = time.perf_counter()
            loaded.generate(variant, PROMPTS[model][0])
            rest = time.perf_counter() - start - sum(times)
            if number == 0:  # the first image of each kind is slower
                continue
            seconds.setdefault(kind, []).extend(times[2::2] if kind.endswith("skipped") else times[1:])
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
    """A variant with its speed-ups of the denoiser and of the whole image, and its median PSNR in dB."""

    name: str
    group: str
    denoiser: float
    image: float
    psnr: float
    lowest: float
    num_images: int


def read_points() -> dict[tuple[str, str, int], list[Point]]:
    """Return the points by model, scheduler and steps of the unmerged denoising."""
    seconds = {row["model"]: row["seconds"] for row in read_rows(FOLDER / "costs.jsonl")}  # the last of each model
    psnrs: dict[tuple[str, str, int], dict[str, list[dict[str, Any]]]] = {}
    for row in read_rows(FOLDER / "images.jsonl"):
        case = (row["model"], row["scheduler"], row["of"])
        psnrs.setdefault(case, {}).setdefault(row["name"], []).append(row)
    points: dict[tuple[str, str, int], list[Point]] = {}
    for (model, scheduler, steps), rows_by_name in psnrs.items():
        costs = seconds[model]
        whole, rest = steps * costs["whole"], costs["everything but the denoiser"]
        for name, rows in rows_by_name.items():
            spent = sum(count * costs[kind] for kind, count in rows[0]["kinds"].items())
            values = [row["psnr"] for row in rows]
            points.setdefault((model, scheduler, steps), []).append(Point(
                name, rows[0]["group"], whole / spent, (whole + rest) / (spent + rest), statistics.median(values),
                min(values), len(values),
            ))  # fmt: skip
    return points


def best_at(points: Sequence[Point], speed: float, groups: Sequence[str]) -> Point | None:
    """Return the most similar of the points of some groups at a speed-up of the denoiser or faster."""
    fast = [point for point in points if point.group in groups and point.denoiser >= speed]
    return max(fast, key=lambda point: point.psnr, default=None)


LINES = {
    "tokens and cache, or either": ("tokens", CACHE, "tokens and cache"), "cache alone": (CACHE,),
    "tokens alone": ("tokens",), "fixed interval": ("fixed interval",), DEEPCACHE: (DEEPCACHE,),
    "fewer steps": (FEWER,), "fewer steps, best tokens or none": (FEWER, f"{FEWER}, best tokens"),
}  # fmt: skip
OURS, CONTROL = LINES["tokens and cache, or either"], LINES["fewer steps, best tokens or none"]
SPEEDS = (1.2, 1.4, 1.6, 1.8, 1.9, 2.0, 2.25, 2.4, 2.6, 3.0, 3.5)


def write_pages() -> None:
    """Write all points and the best at each speed as CSV, and the plot."""
    points = {case: members for case, members in read_points().items() if len(members) >= 10}
    table = [("model", "scheduler", "steps", "setting", "denoiser", "image", "psnr", "lowest", "images")]
    best = [("model", "scheduler", "steps", "denoiser", "best", "psnr", "fewer steps", "their psnr", "above")]
    for case, members in points.items():
        for point in sorted(members, key=lambda point: point.denoiser):
            numbers = (f"{point.denoiser:.2f}", f"{point.image:.2f}", f"{point.psnr:.1f}", f"{point.lowest:.1f}")
            table.append((*map(str, case), point.name, *numbers, str(point.num_images)))
        for speed in SPEEDS:
            one, control = best_at(members, speed, OURS), best_at(members, speed, CONTROL)
            if one is not None:
                cells = ("-", "-", "-")
                if control is not None:
                    cells = (control.name, f"{control.psnr:.1f}", f"{one.psnr - control.psnr:+.1f}")
                best.append((*map(str, case), f"{speed:g}", one.name, f"{one.psnr:.1f}", *cells))
    for name, rows in (("settings", table), ("best", best)):
        with (FOLDER / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    _plot(points)


def _plot(points: Mapping[tuple[str, str, int], Sequence[Point]]) -> None:
    """Draw a panel a case: each point, and for each line the best at a speed or faster."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = 2
    rows = math.ceil(len(points) / columns)
    figure, panels = plt.subplots(rows, columns, figsize=(13, 4.6 * rows), squeeze=False, constrained_layout=True)
    for axes in panels.flat[len(points) :]:
        axes.axis("off")
    for axes, ((model, scheduler, steps), members) in zip(panels.flat, sorted(points.items()), strict=False):
        for number, (label, groups) in enumerate(LINES.items()):
            own = sorted((p for p in members if p.group in groups), key=lambda point: point.denoiser)
            if not own:
                continue
            width = 2.4 if number == 0 else 1.2
            axes.plot([p.denoiser for p in own], [p.psnr for p in own], ".", color=f"C{number}", alpha=0.6)
            speeds = [own[0].denoiser + step * (own[-1].denoiser - own[0].denoiser) / 400 for step in range(401)]
            best = [best_at(own, min(speed, own[-1].denoiser), groups) for speed in speeds]
            axes.plot(speeds, [p.psnr if p else math.nan for p in best], color=f"C{number}", lw=width, label=label)
        axes.set(title=f"{model}, {steps} steps, {scheduler}", xlim=(1, 3.6), xlabel="speed-up of the denoiser",
                 ylabel="PSNR to the unmerged image (dB)")  # fmt: skip
        axes.xaxis.set_major_formatter("{x:g}x")
        axes.grid(alpha=0.3)
    panels[0][0].legend(fontsize=8)
    figure.savefig(PLOT, dpi=100)


def measure_skipped_step() -> None:
    """Print what a skipped step of Stable Diffusion 1.5's UNet costs above the layers that run, random weights."""
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

    pipe = apply_tome(tiny.Sampler(unet, ppdiffusers.DDIMScheduler()), 0, cache=(0, 8))
    pipe(call, 9)
    skipped = seconds[1:8]
    share = statistics.median(total for total, _ in skipped) / seconds[8][0]
    above = statistics.median(total / layers - 1 for total, layers in skipped)
    report = pipe.tome.entries[0].last_image
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
    for name in ("images", "costs"):
        command = commands.add_parser(name)
        command.add_argument("model", choices=list(PROMPTS))
        if name == "images":
            command.add_argument("--steps", type=int, default=20)
            command.add_argument("--scheduler", default="ddim")
            command.add_argument("--prompts", type=int, default=3)
            command.add_argument("--only", nargs="*", default=[], metavar="GROUP")
        else:
            command.add_argument("--rounds", type=int, default=3)
    commands.add_parser("pages")
    commands.add_parser("skipped")
    args = parser.parse_args(argv)
    if args.command == "pages":
        write_pages()
        return
    from benchmarks.pages import prepare

    prepare()
    if args.command == "images":
        variants = [row for row in list_variants(args.model, args.steps) if not args.only or row.group in args.only]
        measure_images(args.model, args.scheduler, args.steps, args.prompts, variants, FOLDER / "images.jsonl")
    elif args.command == "skipped":
        measure_skipped_step()
    else:
        measure_costs(args.model, args.rounds)


if __name__ == "__main__":
    main()

"""``ppdiffusers-tome tune``: try settings here, and save the best."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ppdiffusers_tome.files import prepare_folder, write_text
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.console.output import quiet_libraries
from ppdiffusers_tome.tools.console.tables import Page, Table
from ppdiffusers_tome.tools.generation.arguments import (
    add_controlnet_arguments,
    add_image_arguments,
    add_output_arguments,
    add_tome_arguments,
)
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline, load_for_prompts
from ppdiffusers_tome.tools.generation.results import format_run
from ppdiffusers_tome.tools.generation.settings import check_prompts, get_tome_overrides, parse_settings
from ppdiffusers_tome.tools.measure.similarity import format_psnr
from ppdiffusers_tome.tools.measure.stats import find_frontier
from ppdiffusers_tome.tools.measure.units import format_bytes, format_count, parse_bytes
from ppdiffusers_tome.tuning.candidates import collect_common_settings, list_candidates
from ppdiffusers_tome.tuning.measurement import explain_peak
from ppdiffusers_tome.tuning.results import Target, Trial, Tuned

HELP = "Try settings of token merging on this machine and model, and save the best for a target."
EXAMPLES = """writes tome.json (the settings: for --config, and ToMeConfig.load in Python), tune.md and tune.json (all
trials). The default target is --target-psnr 30. With a PSNR it chooses the fastest settings that meet the target;
without one, those with the images most similar to the unmerged ones. If none pay, it says so and writes no tome.json.

The steps that a cache computes are chosen by images of other seeds than those that judge. Fewer unmerged steps in the
time of the best are measured, too; where they keep more, it says how many, and tome.json merges nothing.

All trials keep the options of "token merging" and the settings of --config, except the ratio, which is searched, and
the cache over steps without --config.

  ppdiffusers-tome tune --target-speedup 1.5 --prompt "a photo of a rocket"
  ppdiffusers-tome tune --method keys --tile 16
  ppdiffusers-tome tune --model runwayml/stable-diffusion-v1-5 --dtype float16 --prompt "a cat" --max-memory 8GiB
  ppdiffusers-tome generate --config outputs/tome.json --prompt "a photo of a cat"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_image_arguments(parser)
    add_controlnet_arguments(parser)
    group = parser.add_argument_group("the target")
    group.add_argument("--target-psnr", type=float, metavar="DB",
                       help="least similarity to the unmerged images (default: 30, if there is no other target)")
    group.add_argument("--target-speedup", type=float, metavar="X", help="least speed-up of the whole call")
    group.add_argument("--max-memory", type=parse_bytes, metavar="SIZE",
                       help="most memory during a call, such as 8GiB or 900MB; needs Paddle 3")
    add_tome_arguments(parser)
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    settings = parse_settings(args, 0.0)  # every trial has its own ratio
    prompts = check_prompts(args.prompt, settings.model.default_prompts[:2])
    kept = collect_common_settings(args.config, get_tome_overrides(args))
    families = list_candidates(kept, steps=settings.steps)  # an error before anything is loaded
    target = Target(args.target_psnr, args.target_speedup, args.max_memory)
    paths = prepare_folder(args.output, ["tome.json", "tune.md", "tune.json"], overwrite=args.overwrite)
    with quiet_libraries():
        loaded, prompts = load_for_prompts(settings, prompts, default=args.prompt is None)
        run = {**loaded.describe_run(), "kept": kept}
        tuned = _tune(loaded, prompts, target, families)
        run |= {"target": vars(target), "memory": explain_peak()}
        if tuned.pays:
            write_text(paths[0], tuned.config.to_json(), overwrite=True)
        else:
            paths.pop(0).unlink(missing_ok=True)  # of an earlier run
        results = {"run": run, "verdict": tuned.verdict, "trials": [trial.to_dict() for trial in tuned.trials],
                   "config": tuned.config.to_dict() if tuned.pays else None, "steps": tuned.steps}  # fmt: skip
        Page("Settings that were tried", _describe(run, tuned), [_make_table(tuned)]).write(paths, results)


def _tune(
    loaded: LoadedPipeline, prompts: list[str], target: Target, families: Mapping[str, Sequence[ToMeConfig]]
) -> Tuned:
    """Search for the settings, and tell how far the search is."""
    import numpy as np
    from tqdm import tqdm

    from ppdiffusers_tome.tuning.results import MeasuredImage
    from ppdiffusers_tome.tuning.search import Search

    settings = loaded.settings
    edges = loaded.load_edges(settings.edges)
    with tqdm(desc="images", position=0, disable=None) as bar:

        def begin(num_images: int, seconds: float) -> None:
            bar.reset(total=num_images)
            number, minutes = format_count(num_images, "image"), max(1, round(seconds / 60))
            print(f"at most {number}, about {minutes} min", file=sys.stderr, flush=True)

        def generate(prompt: str, number: int, num_steps: int | None) -> MeasuredImage:
            generated = loaded.generate(prompt, number, edges, steps=num_steps)
            bar.update()
            return MeasuredImage(np.asarray(generated.image), generated.seconds, generated.peak_bytes)

        def report(trial: Trial) -> None:
            if bar.disable:  # without a terminal
                print(f"{trial.name}: {trial.speed_up:.2f}x, {format_psnr(trial.psnr)} dB", file=sys.stderr, flush=True)

        return Search(
            pipe=loaded.pipe, generate=generate, images=[(prompt, number) for number, prompt in enumerate(prompts)],
            target=target, families=families, steps=settings.steps, on_begin=begin, on_trial=report,
        ).run()  # fmt: skip


def _describe(run: Mapping[str, Any], tuned: Tuned) -> list[str]:
    given = {name: value for name, value in run["target"].items() if value is not None}
    target = [f"{name} {format_bytes(value) if name == 'memory' else f'{value:g}'}" for name, value in given.items()]
    return [
        format_run(run),
        f"target: {', '.join(target)}",
        *([f"kept: {', '.join(f'{name} {value}' for name, value in run['kept'].items())}"] if run["kept"] else []),
        f"unmerged: {tuned.unmerged_seconds:.2f} s, {format_bytes(tuned.unmerged_peak_bytes)} ({run['memory']})",
        tuned.verdict,
    ]


def _make_table(tuned: Tuned) -> Table:
    table = Table(["settings", "", "speed-up when tried", "PSNR (dB), least", "peak memory"], left=2)
    frontier = find_frontier([(trial.speed_up, trial.psnr) for trial in tuned.trials])
    for trial, is_best in zip(tuned.trials, frontier, strict=True):
        is_chosen = tuned.pays and trial.steps == tuned.steps and trial.config == tuned.config
        mark = "chosen" if is_chosen else "frontier" if is_best else ""
        speed_up, peak = f"{trial.speed_up:.2f}x", format_bytes(trial.peak_bytes)
        table.add(trial.name, mark, speed_up, format_psnr(trial.psnr), peak)
    return table

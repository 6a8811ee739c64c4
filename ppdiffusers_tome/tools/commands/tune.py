"""``ppdiffusers-tome tune``: try settings on this machine with this model, and write down those that serve best."""

from __future__ import annotations

import argparse
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.drawing.arguments import (
    add_controlnet_arguments,
    add_output_arguments,
    add_picture_arguments,
    add_tome_arguments,
)
from ppdiffusers_tome.tools.drawing.settings import Settings, check_prompts, given_tome, settings_from
from ppdiffusers_tome.tools.tuning.candidates import candidates, held

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.tuning.tuning import Target, Trial, Tuned

HELP = "Try settings of token merging on this machine and model, and write down the best for a target."
EXAMPLES = """writes tome.json (the settings: for --config, and ToMeConfig.load in Python), tune.md and tune.json (all
that was tried). Without a target it is --target-psnr 30. With a likeness it is the fastest settings that reach it;
without, those most like the unmerged pictures that reach the rest. Where none pay, it says so and writes no tome.json.

What is given under "token merging" holds in all that is tried. Of --config that is everything but the ratio, which is
what is looked for.

examples:
  ppdiffusers-tome tune
  ppdiffusers-tome tune --target-speedup 1.5 --height 256 --width 256
  ppdiffusers-tome tune --method tofu --tile 16
  ppdiffusers-tome tune --model runwayml/stable-diffusion-v1-5 --dtype float16 --prompt "a cat" --max-memory 8GiB
  ppdiffusers-tome generate --config outputs/tome.json --prompt "a red circle on a blue background"
"""
PROMPTS = ("a yellow triangle on a blue background", "a purple triangle above a green circle on a white background")
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_picture_arguments(parser)
    add_controlnet_arguments(parser)
    group = parser.add_argument_group("the target")
    group.add_argument("--target-psnr", type=float, metavar="DB",
                       help="least likeness to the unmerged pictures (default: 30, where no target is given)")
    group.add_argument("--target-speedup", type=float, metavar="X", help="least speed-up of the whole call")
    group.add_argument("--max-memory", metavar="SIZE", help="most memory during a call, such as 8GiB or 900MiB")
    add_tome_arguments(parser)
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    settings = settings_from(args, 0.0)  # whatever ratio is chosen
    prompts = check_prompts(list(PROMPTS) if args.prompt is None else args.prompt)
    memory = None if args.max_memory is None else _bytes(args.max_memory)
    kept = held(args.config, given_tome(args))
    candidates(settings=kept)  # if nothing is left to try, it says so before anything is loaded
    from ppdiffusers_tome.exporting.files import prepare_folder

    paths = prepare_folder(args.output, ["tome.json", "tune.md", "tune.json"], overwrite=args.overwrite)
    from ppdiffusers_tome.tools.console.output import quiet_libraries
    from ppdiffusers_tome.tools.tuning.tuning import Target

    wanted = (args.target_psnr, args.target_speedup, memory)
    target = Target(*wanted) if any(value is not None for value in wanted) else Target(psnr=30.0)
    with quiet_libraries():
        _tune(settings, prompts, target, kept, paths, overwrite=args.overwrite)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(KiB|MiB|GiB)", text)
    if found is None or not 0 < float(found[1]) < math.inf:
        raise UserError(f"--max-memory {text} must be a number and KiB, MiB or GiB, such as 8GiB")
    return int(float(found[1]) * _UNITS[found[2]])


def _tune(
    settings: Settings, prompts: list[str], target: Target, kept: dict[str, Any], paths: list[Path], *, overwrite: bool
) -> None:
    from functools import partial

    from tqdm import tqdm

    from ppdiffusers_tome.tools.console.output import say
    from ppdiffusers_tome.tools.drawing.studio import open_studio
    from ppdiffusers_tome.tools.measuring.measure import memory_meaning
    from ppdiffusers_tome.tools.tuning.tuning import tune_draws

    studio = open_studio(settings, prompts)
    edges = None if settings.edges is None else settings.edges.load(studio.height, studio.width)
    draws = [partial(studio.draw, prompt, number, edges) for number, prompt in enumerate(prompts)]
    number = sum(map(len, candidates(settings=kept).values()))
    with tqdm(total=number, desc="settings", position=0, disable=None) as bar:
        tuned = tune_draws(studio.pipe, draws, target, settings=kept, tried=lambda trial: bar.update())
    told = {**studio.describe_run(), "target": vars(target), "kept": kept, "memory": memory_meaning()}
    table = _markdown(told, tuned)
    found = {"run": told, "verdict": tuned.verdict, "trials": [_plain(trial) for trial in tuned.trials],
             "config": tuned.config.to_dict() if tuned.pays else None}  # fmt: skip
    text = json.dumps(found, indent=2, allow_nan=False) + "\n"
    written = [(paths[1], table), (paths[2], text)]
    if tuned.pays:
        written.insert(0, (paths[0], tuned.config.to_json()))
    say(table)
    for path, content in written:
        _write(path, content, overwrite=overwrite)
        say(str(path))


def _write(path: Path, content: str, *, overwrite: bool) -> None:
    from ppdiffusers_tome.exporting.files import write_whole

    write_whole(path, lambda file: file.write(content.encode()), overwrite=overwrite)


def _plain(trial: Trial) -> dict[str, Any]:
    psnr = trial.psnr if trial.psnr != float("inf") else None
    return {"family": trial.family, "config": trial.config.to_dict(), "speed_up": trial.speed_up, "psnr_db": psnr,
            "peak_bytes": trial.peak_bytes}  # fmt: skip


def _markdown(told: dict[str, Any], tuned: Tuned) -> str:
    from ppdiffusers_tome.tools.evaluation.frontier import on_frontier
    from ppdiffusers_tome.tools.figures.comparison import format_psnr
    from ppdiffusers_tome.tools.measuring.units import format_bytes

    lines = [
        "# Settings that were tried", "",
        f"- {told['model']} model, {told['width']}x{told['height']} pixels, {told['steps']} steps, {told['dtype']}",
        f"- target: {', '.join(f'{name} {value:g}' for name, value in told['target'].items() if value is not None)}",
        *([f"- kept: {', '.join(f'{name} {value}' for name, value in told['kept'].items())}"] if told["kept"] else []),
        f"- unmerged: {tuned.unmerged_seconds:.2f} s, {format_bytes(tuned.unmerged_peak_bytes)} ({told['memory']})",
        f"- {tuned.verdict}", "",
        "| settings | speed-up | PSNR (dB), least | peak memory | |", "|---|---:|---:|---:|---|",
    ]  # fmt: skip
    frontier = on_frontier([(trial.speed_up, trial.psnr) for trial in tuned.trials])
    for trial, best in zip(tuned.trials, frontier, strict=True):
        mark = "chosen" if tuned.pays and trial.config == tuned.config else "frontier" if best else ""
        cells = f"{trial.speed_up:.2f}x | {format_psnr(trial.psnr)} | {format_bytes(trial.peak_bytes)}"
        lines.append(f"| {trial.config.summary} | {cells} | {mark} |")
    return "\n".join(lines) + "\n"

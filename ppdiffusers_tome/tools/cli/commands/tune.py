"""``ppdiffusers-tome tune``: try settings here, and save the best."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.settings.combine import combine_settings
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.console.output import choose_bar, import_quietly, log
from ppdiffusers_tome.tools.console.tables import Table, write_page
from ppdiffusers_tome.tools.console.tome_arguments import name_options, parse_number
from ppdiffusers_tome.tools.files import prepare_folder, write_text
from ppdiffusers_tome.tools.generation.arguments import add_guide_arguments, add_image_arguments, add_output_arguments
from ppdiffusers_tome.tools.generation.checks import parse_settings
from ppdiffusers_tome.tools.generation.prompts import check_prompts
from ppdiffusers_tome.tools.generation.settings import format_run
from ppdiffusers_tome.tools.measure.similarity import format_psnr
from ppdiffusers_tome.tools.measure.system import describe_versions
from ppdiffusers_tome.tuning.results import Target, Trial, Tuned, conclude, list_candidates

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline

HELP = "Try settings of token merging on this machine and model, and save the best."
EXAMPLES = """It tries ratio=0.5, the presets, the cache over steps, and balanced with it, on all prompts, in three
rounds with the unmerged pipeline among them, of which the medians count; of similarity the least counts.
Of those that are faster it saves the fastest that reach --target-psnr or, with --target-speedup alone, the most
similar. It writes tome.json (for --config, and ToMeConfig.load in Python), tune.md and tune.json (all that was tried).
If none reach the target, it names the nearest, and writes no tome.json. Ctrl-C ends it, and keeps what it has found.

  ppdiffusers-tome tune --target-speedup 1.5 --prompt "a photo of a rocket" --prompt "a photo of a cat"
  ppdiffusers-tome tune --model runwayml/stable-diffusion-v1-5 --scheduler ddim --prompt "a cat" --compile
  ppdiffusers-tome generate --config outputs/tome.json --prompt "a photo of a cat"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_image_arguments(parser)
    add_guide_arguments(parser)
    group = parser.add_argument_group("what is tried, and for which target")
    group.add_argument("--configs", nargs="+", metavar="FILE", help="presets, or JSON files, to try in their place")
    group.add_argument("--target-psnr", type=parse_number, metavar="DB",
                       help="least similarity to the unmerged images (default: 30, if there is no other target)")
    group.add_argument("--target-speedup", type=parse_number, metavar="X", help="least speed-up of the whole call")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    settings = parse_settings(args)
    prompts = check_prompts(args.prompt, settings.model.default_prompts[:1])
    given = None if args.configs is None else [combine_settings(each, {}) for each in args.configs]
    candidates = list_candidates(given, [settings.steps])
    with name_options({"target psnr": "--target-psnr", "target speedup": "--target-speedup"}):
        target = Target(args.target_psnr, args.target_speedup)
    paths = prepare_folder(args.output, ["tome.json", "tune.md", "tune.json"], overwrite=args.overwrite)
    trials: dict[ToMeConfig, Trial] = {}
    with import_quietly():
        from ppdiffusers_tome.tools.generation.loading import load_for_prompts

        loaded = load_for_prompts(settings, prompts)
        is_finished = False
        try:
            for trial in _try_settings(loaded, prompts, candidates):
                trials[trial.config] = trial
            is_finished = True
        finally:
            if len(trials) > 1:  # unmerged ones alone say nothing
                made_with = {**loaded.used_settings.describe(), "versions": describe_versions()}
                made_with |= {"prompts": prompts, "seed": settings.seed}
                tuned = conclude(trials.values(), target, loaded.pipe.scheduler)
                if not is_finished:
                    count, tried = len(tuned.trials), "; ".join(trial.name for trial in tuned.trials)
                    verdict = f"Stopped with {count} of {len(candidates)} settings tried ({tried}). {tuned.verdict}"
                    tuned = replace(tuned, verdict=verdict)
                _write(paths, made_with, target, tuned)


def _try_settings(loaded: LoadedPipeline, prompts: Sequence[str], candidates: Sequence[ToMeConfig]) -> Iterator[Trial]:
    """Try the unmerged pipeline and the candidates, and tell of each."""
    import numpy as np
    from tqdm import tqdm

    from ppdiffusers_tome.tuning.trials import ROUNDS, Run, try_candidates

    log("Ctrl-C keeps what is found")

    def run_calls() -> Run:
        images = [loaded.generate(prompt, seed) for seed, prompt in enumerate(prompts, loaded.settings.seed)]
        pixels, is_disturbed = [np.asarray(each.image) for each in images], any(each.is_disturbed for each in images)
        return Run(sum(each.seconds for each in images), pixels, is_disturbed)

    def warm_up(config: ToMeConfig) -> None:
        loaded.generate(prompts[0], loaded.settings.seed, steps=loaded.count_warm_up_steps(config))

    with tqdm(total=ROUNDS * (len(candidates) + 1), desc="settings", **choose_bar()) as bar:
        for trial in try_candidates(loaded.pipe, candidates, run_calls, warm_up):
            tqdm.write(str(trial), file=sys.stderr)
            bar.update()
            yield trial


def _write(paths: Sequence[Path], made_with: Mapping[str, Any], target: Target, tuned: Tuned) -> None:
    """Write and show the trials, and the best settings, if any."""
    config_path, page_path, json_path = paths
    if tuned.best is not None:
        write_text(config_path, tuned.config.to_json())
    else:
        config_path.unlink(missing_ok=True)  # of an earlier run
    table = Table(["settings", "", "seconds", "speed-up", "PSNR (dB), least"], left=2)
    for trial in (tuned.unmerged, *tuned.trials):
        mark, psnr = "best" if trial is tuned.best else "", format_psnr(trial.psnr)
        table.add(trial.name, mark, f"{trial.seconds:.2f}", f"{trial.speedup:.2f}x", psnr)
    required = (("PSNR {:g} dB", target.psnr), ("speed-up {:g}x", target.speedup))
    given = ", ".join(words.format(value) for words, value in required if value is not None)
    results = {"run": made_with, "target": vars(target), "verdict": tuned.verdict,
               "config": None if tuned.best is None else tuned.config.to_dict(), "unmerged": asdict(tuned.unmerged),
               "trials": [asdict(trial) for trial in tuned.trials]}  # fmt: skip
    notes = [format_run(made_with), f"target: {given}", tuned.verdict]
    other_paths = [] if tuned.best is None else [config_path]
    write_page(page_path, json_path, "Settings that were tried", notes, table, results, other_paths=other_paths)

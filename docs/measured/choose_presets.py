"""Choose the presets from evaluations, or say what they would be.

    python docs/measured/choose_presets.py docs/measured/fidelity/bundled.json docs/measured/fidelity/bundled-dit.json

With ``--write`` it writes their files. A preset is the fastest of the suite's settings whose pictures are at least so
many dB closer to the unmerged ones than those of ``ratio=0.5``, tomesd's usual setting (``AIMS``), on the text-to-image
model: what presets are used on most is a UNet. Pictures of the same prompt and seed are compared, and the difference
counts with the lower end of its 95% interval. Speed is the speed-up of the blocks that merge, which on a busy machine
is steadier than that of the whole picture. What they come to on other models is printed beside it.

Only settings that compute no similarities are taken: by the estimate for GPUs (docs/en/results/gpu-estimate.md) a
matching in every block costs more there than it saves. And only those that merge in every step, as a part of the steps
cannot be exported, nor told where a model does not report its timestep; ``end`` goes with any preset. ``balanced`` with
``end=0.9`` would be a faster ``quality`` on the UNet (blocks 2.19x instead of 1.99x, -0.3 to +3.1 dB), but on the
transformer it is no faster and loses 4.8 dB (2.4 to 6.2), so presets have no ``end``. Run this from the repository,
with the package installed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from choices import subtract_psnr

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import FOLDER

AIMS = {"quality": 6.0, "balanced": 1.0, "fast": -2.0}  # dB above the reference
MODEL = "bundled"
REFERENCE = "tome 0.5"
WITHOUT_MATCHING = ("todo", "pool")


@dataclass(frozen=True)
class Candidate:
    """Settings of the suite, by their name there.

    Attributes:
        name, settings: as the suite has them.
        speed: median speed-up of the blocks that merge, by model.
        above: dB above the reference, by model: the interval of the median difference.
    """

    name: str
    settings: Mapping[str, Any]
    speed: Mapping[str, float]
    above: Mapping[str, tuple[float, float]]


def candidates(evaluations: Sequence[Mapping[str, Any]]) -> list[Candidate]:
    """All settings that can be a preset and were evaluated on ``MODEL``, the fastest first.

    Raises:
        ValueError: there are two evaluations of a model.
    """
    models = {
        each["run"]["model"]: {row["configuration"]["name"]: row for row in each["configurations"]}
        for each in evaluations
    }
    if len(models) < len(evaluations):
        given = ", ".join(each["run"]["model"] for each in evaluations)
        raise ValueError(f"one evaluation of each model is needed; got {given}")
    usual = ToMeConfig().to_dict()
    found = []
    for name, row in models[MODEL].items():
        given = row["configuration"]["tome"] or {}
        if given.get("method") not in WITHOUT_MATCHING or (given["start"], given["end"]) != (0, 1):
            continue
        settings = {setting: value for setting, value in given.items() if value != usual[setting]}
        own = {model: rows for model, rows in models.items() if name in rows}
        speed = {model: rows[name]["block_speed_up"]["median"] for model, rows in own.items()}
        above = {model: above_reference(rows[name], rows[REFERENCE]) for model, rows in own.items()}
        found.append(Candidate(name, settings, speed, above))
    return sorted(found, key=lambda each: -each.speed[MODEL])


def above_reference(row: Mapping[str, Any], reference: Mapping[str, Any]) -> tuple[float, float]:
    """The interval of the median difference in PSNR to the reference, picture by picture.

    Raises:
        ValueError: there are too few pictures for an interval.
    """
    around = subtract_psnr(row, reference).interval
    if around is None:
        raise ValueError(f"{len(row['samples'])} pictures are too few to choose by; evaluate more prompts or seeds")
    return around


def chosen(found: Sequence[Candidate]) -> dict[str, Candidate]:
    """The preset of each name.

    Raises:
        ValueError: no settings reach an aim.
    """
    presets = {}
    for name, aim in AIMS.items():
        fitting = [each for each in found if each.above[MODEL][0] >= aim]
        if not fitting:
            raise ValueError(f"no settings are {aim:g} dB above {REFERENCE} on {MODEL}, as {name} is to be")
        presets[name] = fitting[0]
    return presets


def preset_file(name: str) -> Path:
    return FOLDER / f"{name}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("evaluations", type=Path, nargs="+", help="evaluate.json of each model")
    parser.add_argument("--write", action="store_true", help="write the presets' files")
    args = parser.parse_args()
    found = candidates([json.loads(path.read_text()) for path in args.evaluations])
    print("\n".join(table(found)))
    for name, preset in chosen(found).items():
        print(f"\n{name}: {preset.name}")
        if args.write:
            preset_file(name).write_text(json.dumps(preset.settings) + "\n")


def table(found: Sequence[Candidate]) -> list[str]:
    """All candidates as lines of Markdown: speed-up of the blocks and the interval above the reference, by model."""
    models = list(dict.fromkeys(model for each in found for model in each.above))
    return [
        f"| settings | {' | '.join(f'{model}: blocks | dB above {REFERENCE}' for model in models)} |",
        f"|---|{'---:|' * (2 * len(models))}",
        *(f"| {each.name} | {' | '.join(figures(each, model) for model in models)} |" for each in found),
    ]


def figures(candidate: Candidate, model: str) -> str:
    if model not in candidate.above:
        return "- | -"
    low, high = candidate.above[model]
    return f"{candidate.speed[model]:.2f}x | {low:+.1f} to {high:+.1f}"


if __name__ == "__main__":
    main()

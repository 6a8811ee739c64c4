"""Choose the presets from evaluations, or say what they would be.

    python docs/measured/choose_presets.py docs/measured/fidelity/bundled-dit.json
    python docs/measured/choose_presets.py docs/measured/fidelity/*.json --write

A preset is the fastest of the suite's settings whose pictures are at least so many dB closer to the unmerged ones than
those of ``ratio=0.5``, tomesd's usual setting, on every model that was evaluated (``AIMS``). Pictures of the same
prompt and seed are compared, and the difference counts with the lower end of its interval. Speed is the geometric mean
of the models' speed-ups of the whole picture.

Only settings that compute no similarities are taken: by the estimate for GPUs (docs/en/results/gpu-estimate.md) a
matching in every block costs more there than it saves. Run it from the repository, with the package installed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import FOLDER
from ppdiffusers_tome.tools.evaluation.intervals import interval

AIMS = {"quality": 6.0, "balanced": 3.0, "fast": 0.0}  # dB above the reference
REFERENCE = "tome 0.5"
WITHOUT_MATCHING = ("todo", "pool")


@dataclass(frozen=True)
class Candidate:
    """Settings of the suite, by their name there.

    Attributes:
        name, settings: as the suite has them.
        speed: geometric mean over the models of the median speed-up of the whole picture.
        above: dB above the reference, by model: the lower end of the interval of the median difference.
    """

    name: str
    settings: Mapping[str, Any]
    speed: float
    above: Mapping[str, float]

    @property
    def least_above(self) -> float:
        return min(self.above.values())


def candidates(evaluations: Sequence[Mapping[str, Any]]) -> list[Candidate]:
    """All settings that compute no similarities and were evaluated on every model, the fastest first."""
    rows = [{row["configuration"]["name"]: row for row in each["configurations"]} for each in evaluations]
    models = [each["run"]["model"] for each in evaluations]
    usual = ToMeConfig().to_dict()
    found = []
    for name, row in rows[0].items():
        given = row["configuration"]["tome"] or {}
        if given.get("method") not in WITHOUT_MATCHING or not all(name in other for other in rows):
            continue
        settings = {setting: value for setting, value in given.items() if value != usual[setting]}
        speeds = [own[name]["speed_up"]["median"] for own in rows]
        above = [above_reference(own[name], own[REFERENCE]) for own in rows]
        speed = math.exp(sum(map(math.log, speeds)) / len(speeds))
        found.append(Candidate(name, settings, speed, dict(zip(models, above, strict=True))))
    return sorted(found, key=lambda each: -each.speed)


def above_reference(row: Mapping[str, Any], reference: Mapping[str, Any]) -> float:
    """The lower end of the interval of the difference in PSNR to the reference, picture by picture.

    Raises:
        ValueError: there are too few pictures for an interval.
    """
    others = {_case(sample): _psnr(sample) for sample in reference["samples"]}
    around = interval([_psnr(sample) - others[_case(sample)] for sample in row["samples"]])
    if around is None:
        raise ValueError(f"{len(others)} pictures are too few to choose by; evaluate more prompts or seeds")
    return around[0]


def _case(sample: Mapping[str, Any]) -> tuple[str, int]:
    return sample["prompt"], sample["seed"]


def _psnr(sample: Mapping[str, Any]) -> float:
    return math.inf if sample["psnr_db"] is None else float(sample["psnr_db"])


def chosen(found: Sequence[Candidate]) -> dict[str, Candidate]:
    """The preset of each name.

    Raises:
        ValueError: no settings reach an aim.
    """
    presets = {}
    for name, aim in AIMS.items():
        fitting = [each for each in found if each.least_above >= aim]
        if not fitting:
            raise ValueError(f"no settings are {aim:g} dB above {REFERENCE} on every model, as {name} is to be")
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
    models = list(found[0].above)
    print(f"| settings | speed-up | {' | '.join(f'dB above {REFERENCE}, {model}' for model in models)} |")
    print(f"|---|{'---:|' * (len(models) + 1)}")
    for each in found:
        print(f"| {each.name} | {each.speed:.2f}x | {' | '.join(f'{each.above[model]:+.1f}' for model in models)} |")
    for name, preset in chosen(found).items():
        print(f"\n{name}: {preset.name}, {preset.speed:.2f}x, {preset.least_above:+.1f} dB or more")
        if args.write:
            preset_file(name).write_text(json.dumps(preset.settings) + "\n")


if __name__ == "__main__":
    main()

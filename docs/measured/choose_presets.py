"""Choose the presets from evaluations.

    python docs/measured/choose_presets.py docs/measured/fidelity/photographs.json docs/measured/fidelity/dit.json

It prints the choice, for ``settings/presets.py``. A preset is the fastest setting of the suite whose
PSNR exceeds that of ``ratio=0.5``, tomesd's usual setting, by a minimum (``MIN_GAINS``) on the text-to-image model,
because presets are used most on a UNet. Images of the same prompt and seed are compared, and the lower end of the
difference's 95% interval counts. Speed is the speed-up of the blocks that merge: on a busy machine it is steadier than
that of the whole image. The results on other models are printed beside it.

Only settings that compute no similarities are candidates: by the estimate for GPUs (docs/measured/gpu/README.md) a
matching in every block costs more there than it saves. And only those that merge in every step: merging in some steps
has no static program, and needs a model that reports its timestep. Users can add ``end`` to any preset. ``balanced``
with ``end=0.9`` would be a faster ``quality`` on the UNet (blocks 2.19x instead of 1.99x, +0.3 to +3.4 dB), but on the
transformer it is no faster and keeps less (-4.3 to +0.4 dB), so presets have no ``end``.

``balanced`` must gain 2 dB. With 1 dB it would be 3x3 at two levels, blocks 2.86x instead of 2.47x and 1.3 dB less; 2
dB keeps the preset that the other pages have measured. A third one, ``fast`` (4x4 at two levels, the PSNR of
``ratio=0.5``), is gone: by features of images it was worse than unmerged, and fewer steps, with ``balanced`` or
without, were as fast and better (docs/en/results/quality.md).

Run this from the repository, with the package installed.
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

MIN_GAINS = {"quality": 6.0, "balanced": 2.0}  # dB above the reference
MODEL = "photographs"
REFERENCE = "tome 0.5"
METHODS_WITHOUT_MATCHING = ("todo",)


@dataclass(frozen=True)
class Candidate:
    """Settings of the suite that could be a preset.

    Attributes:
        name: in the suite.
        settings: those that differ from the defaults.
        speed: median speed-up of the blocks that merge, by model.
        gain: the 95% interval of the median difference in PSNR to the reference in dB, by model.
    """

    name: str
    settings: Mapping[str, Any]
    speed: Mapping[str, float]
    gain: Mapping[str, tuple[float, float]]


def find_candidates(evaluations: Sequence[Mapping[str, Any]]) -> list[Candidate]:
    """Return all possible presets that were evaluated on ``MODEL``, the fastest first.

    Raises:
        ValueError: a model has two evaluations.
    """
    names = [evaluation["run"]["model"] for evaluation in evaluations]
    if len(set(names)) < len(names):
        raise ValueError(f"one evaluation of each model is needed; got {', '.join(names)}")
    models = {
        name: {row["configuration"]["name"]: row for row in evaluation["configurations"]}
        for name, evaluation in zip(names, evaluations, strict=True)
    }
    defaults = ToMeConfig().to_dict()
    candidates = []
    for name, row in models[MODEL].items():
        tome = row["configuration"]["tome"] or {}
        if tome.get("method") not in METHODS_WITHOUT_MATCHING or (tome["start"], tome["end"]) != (0, 1):
            continue
        settings = {name: tome[name] for name, default in defaults.items() if tome.get(name, default) != default}
        if isinstance(tome["ratio"], Mapping):  # the same at levels 1 and 2, when a ratio could differ by level
            settings |= {"ratio": tome["ratio"]["1"], "max_downsample": 2}
        evaluated = {model: rows for model, rows in models.items() if name in rows}
        speed = {model: rows[name]["block_speedup"]["median"] for model, rows in evaluated.items()}
        gain = {model: compute_gain(rows[name], rows[REFERENCE]) for model, rows in evaluated.items()}
        candidates.append(Candidate(name, settings, speed, gain))
    return sorted(candidates, key=lambda candidate: -candidate.speed[MODEL])


def compute_gain(row: Mapping[str, Any], reference: Mapping[str, Any]) -> tuple[float, float]:
    """Return the interval of the median difference in PSNR to the reference, in dB.

    Raises:
        ValueError: there are too few images for an interval.
    """
    interval = subtract_psnr(row, reference).interval
    if interval is None:
        raise ValueError(f"{len(row['samples'])} images are too few to choose by; evaluate more prompts or seeds")
    return interval


def choose_presets(candidates: Sequence[Candidate]) -> dict[str, Candidate]:
    """Choose the settings of each preset, by its name.

    Raises:
        ValueError: no candidate reaches a minimum.
    """
    presets = {}
    for name, min_gain in MIN_GAINS.items():
        preset = next((candidate for candidate in candidates if candidate.gain[MODEL][0] >= min_gain), None)
        if preset is None:
            raise ValueError(f"{name} needs settings {min_gain:g} dB above {REFERENCE} on {MODEL}; none were evaluated")
        presets[name] = preset
    return presets


def make_table(candidates: Sequence[Candidate]) -> list[str]:
    """Make a Markdown table of the candidates."""
    models = list(dict.fromkeys(model for candidate in candidates for model in candidate.gain))
    return [
        f"| settings | {' | '.join(f'{model}: blocks | dB above {REFERENCE}' for model in models)} |",
        f"|---|{'---:|' * (2 * len(models))}",
        *(f"| {row.name} | {' | '.join(format_candidate(row, model) for model in models)} |" for row in candidates),
    ]


def format_candidate(candidate: Candidate, model: str) -> str:
    if model not in candidate.gain:
        return "- | -"
    low, high = candidate.gain[model]
    return f"{candidate.speed[model]:.2f}x | {low:+.1f} to {high:+.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("evaluations", type=Path, nargs="+", help="compare.json of each model")
    args = parser.parse_args()
    candidates = find_candidates([json.loads(path.read_text()) for path in args.evaluations])
    print("\n".join(make_table(candidates)))
    for name, preset in choose_presets(candidates).items():
        print(f"\n{name}: {preset.name}, {json.dumps(preset.settings)}")


if __name__ == "__main__":
    main()

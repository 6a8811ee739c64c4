"""Train a LoRA unmerged, partly merged and merged, and compare loss and speed.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.lora_training
    PYTHONPATH=tests python -m benchmarks.lora_training --images photos --prompt "a photo of my dog"

It trains the LoRA of ``examples/train_lora.py`` three times in turns, with the same crops, noise and timesteps. The
held-out loss is that of the unmerged model on the other halves of the images. Writes results.json at every evaluation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from PIL import Image
from ppdiffusers import DDPMScheduler, StableDiffusionPipeline

import ppdiffusers_tome
from ppdiffusers_tome.tools.measure.meter import Meter

sys.path.append(str(Path(__file__).parents[2] / "examples"))
from train_lora import SMALL_MODEL, add_lora, compute_loss, encode, find_linears, read_photographs

MEASURES = ("seconds", "processor_seconds", "peak_bytes")  # medians per step; other programs do not affect the second
HELD_OUT_CROPS, HELD_OUT_TIMESTEPS = 2, (125, 375, 625, 875)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(SMALL_MODEL), help="default: the small model of photographs")
    parser.add_argument("--images", type=Path, help="folder of images (default: four photographs of scikit-image)")
    parser.add_argument("--prompt", help="of all images (default: 'a photo of' and the file's name)")
    parser.add_argument("--config", default="balanced", help="a preset or a JSON file of settings (default: balanced)")
    parser.add_argument("--merged-part", type=float, default=0.8, help="of the second training's steps (default: 0.8)")
    parser.add_argument("--steps", type=int, default=60, help="of each training (default: 60)")
    parser.add_argument("--batch", type=int, default=1, help="default: 1")
    parser.add_argument("--crops", type=int, default=6, help="of each image to train on (default: 6)")
    parser.add_argument("--size", type=int, help="of a crop in pixels (default: the model's)")
    parser.add_argument("--rank", type=int, default=8, help="of the LoRA (default: 8)")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="default: 0.001")
    parser.add_argument("--evaluations", type=int, default=2, help="of the held-out loss (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--output", type=Path, default=Path("outputs/lora"), help="default: outputs/lora")
    args = parser.parse_args(argv)
    train(args, read_photographs(args.images))


def train(args: argparse.Namespace, photographs: Sequence[tuple[str, Image.Image]]) -> None:
    """Train the same LoRA unmerged, partly merged and merged, in turns."""
    ppdiffusers_tome.prepare_cpu()
    pipe = StableDiffusionPipeline.from_pretrained(args.model)
    unet, scheduler = pipe.unet, DDPMScheduler.from_config(pipe.scheduler.config)
    for parameter in unet.parameters():
        parameter.stop_gradient = True  # only the LoRA learns
    size = args.size or unet.config.sample_size * pipe.vae_scale_factor
    rng, encoded = np.random.default_rng(args.seed), {}
    for held_out, count in ((False, args.crops), (True, HELD_OUT_CROPS)):
        crops = [crop for _, image in photographs for crop in cut_crops(image, count, size, rng, held_out=held_out)]
        prompts = [args.prompt or f"a photo of {name}" for name, _ in photographs for _ in range(count)]
        encoded[held_out] = encode(pipe, crops, prompts)
    num_train, num_held_out = len(encoded[False][0]), len(encoded[True][0])

    def make_batch(
        rng: np.random.Generator, crops: Sequence[int], timesteps: Sequence[int], *, held_out: bool
    ) -> tuple[paddle.Tensor, ...]:
        """Return latents, texts, noise and timesteps of some crops."""
        latents, texts = (values[paddle.to_tensor(crops)] for values in encoded[held_out])
        noise = paddle.to_tensor(rng.standard_normal(latents.shape, np.float32))
        return latents, texts, noise, paddle.to_tensor(timesteps)

    def evaluate() -> list[float]:
        """Return the unmerged losses on held-out crops, always with the same noise."""
        ppdiffusers_tome.remove_tome(unet)
        rng = np.random.default_rng(0)
        batches = [make_batch(rng, [crop], [timestep], held_out=True)
                   for timestep in HELD_OUT_TIMESTEPS for crop in range(num_held_out)]  # fmt: skip
        with paddle.no_grad():
            return [float(compute_loss(unet, scheduler, *batch)) for batch in batches]

    parts = {"whole": 0.0, "merged, then whole": args.merged_part, "merged": 1.0}
    trainings = {name: Training(find_linears(unet), part, args) for name, part in parts.items()}
    before: list[float] = evaluate()
    measured: dict[str, list[tuple[float, float, int]]] = {"whole": [], "merged": []}
    evaluated = {max(2, round(args.steps * number / args.evaluations)) for number in range(1, args.evaluations + 1)}
    args.output.mkdir(parents=True, exist_ok=True)
    for step in range(args.steps):
        rng = np.random.default_rng([args.seed, step])
        crops, timesteps = (rng.integers(0, end, args.batch) for end in (num_train, 1000))
        batch = make_batch(rng, crops, timesteps, held_out=False)
        for training in trainings.values():  # in turns, so that a slow phase of the machine affects all
            training.activate()
            kind = "merged" if step < training.merged_part * args.steps else "whole"
            ppdiffusers_tome.remove_tome(unet)
            if kind == "merged":
                ppdiffusers_tome.apply_tome(unet, args.config)
            meter, processor_start = Meter(), time.process_time()
            compute_loss(unet, scheduler, *batch).backward()
            training.optimizer.step()
            training.optimizer.clear_grad()
            if step > 0:  # the first step is slower
                processor_seconds = time.process_time() - processor_start
                measured[kind].append((meter.read_seconds(), processor_seconds, meter.peak_bytes() or 0))
            if step + 1 in evaluated:
                training.losses[step + 1] = evaluate()
        if step + 1 in evaluated:
            write_results(args, before, trainings, measured)


def write_results(
    args: argparse.Namespace, before: list[float], trainings: dict[str, Training],
    measured: dict[str, list[tuple[float, float, int]]],
) -> None:  # fmt: skip
    """Write and print the measurements so far."""
    per_step = {kind: dict(zip(MEASURES, map(statistics.median, zip(*rows, strict=True)), strict=True))
               for kind, rows in measured.items()}  # fmt: skip
    for kind, medians in per_step.items():
        print(f"a step {kind}: {medians['seconds']:.2f} s, {medians['peak_bytes'] / 2**20:,.0f} MiB at the peak")
    print(f"held-out loss before: {np.mean(before):.4f}")
    for name, training in trainings.items():
        part, (step, losses) = training.merged_part, list(training.losses.items())[-1]
        mean_seconds = part * per_step["merged"]["seconds"] + (1 - part) * per_step["whole"]["seconds"]
        gain = np.mean(before) - np.mean(losses)
        fraction = gain / (np.mean(before) - np.mean(trainings["whole"].losses[step]))
        print(f"step {step}, {name}: {mean_seconds:.2f} s a step, held-out loss {np.mean(losses):.4f}, "
              f"{fraction:.1%} of the gain of whole training")  # fmt: skip
    losses = {"before": before, **{name: training.losses for name, training in trainings.items()}}
    settings = {name: str(value) for name, value in vars(args).items()}
    results = {"settings": settings, "step": per_step, "losses": losses}
    (args.output / "results.json").write_text(json.dumps(results, indent=1))


def cut_crops(
    image: Image.Image, count: int, size: int, rng: np.random.Generator, *, held_out: bool
) -> list[Image.Image]:
    """Cut square crops of ``size`` pixels from an image's first half, or held-out crops from its second."""
    crops = []
    longer = image.size.index(max(image.size))
    half = image.size[longer] // 2
    side = min(half, *image.size)
    for _ in range(count):
        ends = [half if axis == longer else length for axis, length in enumerate(image.size)]
        corner = [int(rng.integers(0, end - side + 1)) for end in ends]
        corner[longer] += half * held_out
        crop = image.crop((*corner, corner[0] + side, corner[1] + side))
        crops.append(crop.resize((size, size), Image.Resampling.LANCZOS))
    return crops


class Training:
    """A LoRA with its optimizer, and merging in the first part of the steps."""

    def __init__(self, linears: dict[str, Any], merged_part: float, args: argparse.Namespace) -> None:
        paddle.seed(args.seed)  # equal initial weights in all trainings
        self.linears, self.merged_part = linears, merged_part
        self.layers = add_lora(linears, args.rank)
        parameters = [parameter for layer in self.layers.values() for parameter in layer.parameters()]
        self.optimizer = paddle.optimizer.AdamW(args.learning_rate, parameters=parameters)
        self.losses: dict[int, list[float]] = {}  # on held-out crops, by step

    def activate(self) -> None:
        for name, linear in self.linears.items():
            linear.set_lora_layer(self.layers[name])


if __name__ == "__main__":
    main()

"""Measure self-attention in windows, which the package does not have.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.windows images
    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.windows images --model dit
    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.windows images --hires 1024
    PYTHONPATH=tests OMP_NUM_THREADS=1 python -m benchmarks.windows layers

``images`` prints the PSNR to the unmerged image, where other work on the machine changes nothing. It saves all images,
and resumes. ``layers`` prints the cost of one attention layer. With 4x4 windows a query sees as many keys as with
``todo`` and a stride of 4. HyperTile (github.com/tfernd/HyperTile) folds windows into the batch like this. Windows that
move in every second step, by half of their side, are those that should leave no seams.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.gpu_costs import DEVICES, Costs, attention_costs, elementwise, linear, seconds_of
from benchmarks.timing import measure_seconds
from benchmarks.turns import take_turns

DIVISIONS = (2, 4, 8)  # windows a side, and the stride of `todo` that leaves as many keys
STEPS = 10


def fold(x: Any, division: int, shift: int) -> Any:
    """Fold the windows of a square grid into the batch.

    Args:
        x: ``[batch, tokens, channels]``, numbered row by row.
        division: the number of windows on a side, a divisor of the grid's.
        shift: how many rows and columns of tokens move to the end first.
    """
    batch, num_tokens, channels = x.shape
    side = round(num_tokens**0.5)
    grid, size = x.reshape([batch, side, side, channels]), side // division
    if shift:
        grid = grid.roll([-shift, -shift], [1, 2])
    windows = grid.reshape([batch, division, size, division, size, channels]).transpose([0, 1, 3, 2, 4, 5])
    return windows.reshape([-1, size**2, channels])


def unfold(y: Any, division: int, shift: int) -> Any:
    """Invert ``fold``."""
    size, channels = round(y.shape[1] ** 0.5), y.shape[2]
    windows = y.reshape([-1, division, division, size, size, channels]).transpose([0, 1, 3, 2, 4, 5])
    grid = windows.reshape([-1, division * size, division * size, channels])
    return (grid.roll([shift, shift], [1, 2]) if shift else grid).flatten(1, 2)


class WindowProcessor:
    """Attention processor that runs a layer of self-attention in windows."""

    def __init__(self, division: int, *, moves: bool) -> None:
        from benchmarks.onnx_kernels import AttnProcessor

        self.division, self.moves, self.num_calls, self.attend = division, moves, 0, AttnProcessor()

    def __call__(self, attn: Any, hidden_states: Any, *_: Any, **__: Any) -> Any:
        size = round(hidden_states.shape[1] ** 0.5) // self.division
        shift = size // 2 if self.moves and self.num_calls % 2 else 0
        self.num_calls += 1
        return unfold(self.attend(attn, fold(hidden_states, self.division, shift)), self.division, shift)


def list_layers(denoiser: Any) -> list[Any]:
    """List the layers in which the default settings merge."""
    if hasattr(denoiser, "transformer_blocks"):
        return [block.attn1 for block in denoiser.transformer_blocks]
    parents = (*denoiser.down_blocks[0].attentions, *denoiser.up_blocks[-1].attentions)
    return [block.attn1 for parent in parents for block in parent.transformer_blocks]


def measure_images(model: str, num_prompts: int, hires: int, folder: Path) -> str:
    """Measure whole images, save them, and return a table of PSNR.

    Args:
        model: ``photographs`` or ``dit``.
        num_prompts: how many of the model's prompts.
        hires: pixels on a side of a second pass over the enlarged image; 0 for none.
        folder: where images go.
    """
    import numpy as np
    import paddle
    from PIL import Image
    from ppdiffusers import StableDiffusionImg2ImgPipeline

    from benchmarks.step_caches import PROMPTS, UNMERGED, Model, Variant
    from ppdiffusers_tome import ToMeConfig, apply_tome, remove_tome
    from ppdiffusers_tome.tuning.similarity import compute_psnr

    loaded, plain = Model(model, "ddim"), Variant(UNMERGED, UNMERGED, None, STEPS)
    layers = list_layers(loaded.denoiser)
    whole_processor = layers[0].processor

    def generate(prompt: str, config: ToMeConfig, draft: Any) -> Any:
        if draft is None:
            loaded.apply(replace(plain, config=config))
            return loaded.generate(prompt, STEPS)
        pipe = StableDiffusionImg2ImgPipeline(**loaded.pipe.components)
        pipe.set_progress_bar_config(disable=True)
        apply_tome(pipe, config)
        paddle.seed(0)
        call = {"strength": 0.5, "num_inference_steps": STEPS, "guidance_scale": 1.5}
        return pipe(prompt, image=draft.resize((hires, hires)), **call).images[0]

    def load_or_generate(name: str, prompt: str, make_processor: Any, config: ToMeConfig, draft: Any) -> Any:
        path = folder / f"{prompt.split()[-1]}, {name}.png"
        if not path.exists():
            for layer in layers:
                layer.set_processor(make_processor() if make_processor else whole_processor)
            generate(prompt, config, draft).save(path)
            remove_tome(loaded.pipe)
        return Image.open(path)

    whole = ToMeConfig(0.0)
    variants = {UNMERGED: (None, whole), "tome 0.5": (None, ToMeConfig(0.5))}
    for division in DIVISIONS:
        todo = ToMeConfig(1 - division**-2, method="todo", sx=division, sy=division)
        variants[f"todo, 1 key in {division**2}"] = None, todo
        for name, moves in (("windows", False), ("moving windows", True)):
            variants[f"{name}, 1 key in {division**2}"] = partial(WindowProcessor, division, moves=moves), whole
    folder.mkdir(parents=True, exist_ok=True)
    psnrs: dict[str, list[float]] = {name: [] for name in variants}
    for prompt in PROMPTS[model][:num_prompts]:
        draft = load_or_generate("draft", prompt, None, whole, None) if hires else None
        images = [load_or_generate(name, prompt, *variant, draft) for name, variant in variants.items()]
        pixels = [np.asarray(image) for image in images]  # the unmerged one first
        for values, image in zip(psnrs.values(), pixels, strict=True):
            values.append(compute_psnr(pixels[0], image))
    rows = [(name, f"{statistics.median(values):.1f}", f"{min(values):.1f}") for name, values in psnrs.items()]
    return pages.table(["attention", "PSNR, dB", "lowest"], rows[1:])


def measure_layers(sides: Sequence[int], channels: int, num_heads: int, repeats: int) -> str:
    """Time one layer on two images, and return a table.

    Args:
        sides: of the square grids, in tokens.
        channels, num_heads: of the layer.
        repeats: rounds, of which the fastest counts.
    """
    import paddle
    from ppdiffusers.models.attention_processor import Attention

    from benchmarks.onnx_kernels import AttnProcessor
    from ppdiffusers_tome.merging.grid import Grid
    from ppdiffusers_tome.merging.matching import match_tokens
    from ppdiffusers_tome.merging.partition import random_partition

    attn = Attention(channels, heads=num_heads, dim_head=channels // num_heads)
    attend, timestep, rows = AttnProcessor(), paddle.to_tensor([500]), []
    for side in sides:
        grid = Grid(side, side)
        x = paddle.randn([2, grid.num_tokens, channels])

        def run_todo(stride: int, grid: Grid = grid, x: paddle.Tensor = x) -> None:
            kept = random_partition(grid, stride, stride, seed=0, timestep=timestep).destinations
            attend(attn, x, paddle.index_select(x, kept, axis=1))

        def run_tome(grid: Grid = grid, x: paddle.Tensor = x) -> None:
            partition = random_partition(grid, 2, 2, seed=0, timestep=timestep)
            matching = match_tokens(x, partition, grid.num_merged(0.5))
            assert matching is not None
            matching.restore(attend(attn, matching.reduce(x)))

        turns: dict[str, Callable[[], Any]] = {"whole": partial(attend, attn, x), "tome 0.5": run_tome}
        costs = {"whole": count_layer(side, channels)}
        for division in DIVISIONS:
            todo, windows = f"todo, 1 key in {division**2}", f"windows, 1 key in {division**2}"
            turns[todo], costs[todo] = partial(run_todo, division), count_layer(side, channels, stride=division)
            turns[windows] = partial(WindowProcessor(division, moves=True), attn, x)
            costs[windows] = count_layer(side, channels, division=division)
        with paddle.no_grad():
            seconds = take_turns({name: partial(measure_seconds, work) for name, work in turns.items()}, repeats)
        for name, values in seconds.items():
            estimates = ["-"] * 3
            if name in costs:
                gflop = sum(cost.flops for cost in costs[name]) / 1e9
                estimates = [f"{gflop:.1f}", *(f"{1e6 * seconds_of(costs[name], device):.0f}" for device in DEVICES)]
            rows.append((f"{side}x{side}", name, f"{1e3 * min(values):.0f}", *estimates))
    devices = [f"{device.name}, estimate, µs" for device in DEVICES]
    return pages.table(["tokens", "attention", "this CPU, ms", "GFLOP", *devices], rows, left=2)


def count_layer(side: int, channels: int, *, stride: int = 1, division: int = 1) -> Costs:
    """Count a layer on two images, with the keys of ``todo`` or windows."""
    tokens = 2 * side**2
    keys, entries = tokens // stride**2, tokens * channels
    costs = [cost for rows in (tokens, tokens, keys, keys) for cost in linear(rows, channels, channels)]
    windows = division**2
    costs += attention_costs(2 * windows, side**2 // windows, side**2 // stride**2 // windows, channels)
    if stride > 1:
        costs += elementwise(keys * channels)  # a gather
    if division > 1:
        costs += elementwise(entries, 4)  # roll and fold, unfold and roll
    return costs


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    images = commands.add_parser("images", help="PSNR of whole images")
    images.add_argument("--model", choices=["photographs", "dit"], default="photographs")
    images.add_argument("--prompts", type=int, default=4, metavar="N", help="1 to 4 (default: 4)")
    images.add_argument("--hires", type=int, default=0, metavar="PIXELS", help="of a second pass; UNet only")
    images.add_argument("--output", type=Path, default=Path("outputs/windows"), metavar="FOLDER")
    layers = commands.add_parser("layers", help="cost of one layer")
    layers.add_argument("--sides", type=int, nargs="+", default=[64, 96, 128], metavar="N", help="of grids, in tokens")
    layers.add_argument("--channels", type=int, default=320)
    layers.add_argument("--heads", type=int, default=8)
    layers.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args(argv)
    if args.command == "images":
        print(measure_images(args.model, args.prompts, args.hires, args.output))
    else:
        print(measure_layers(args.sides, args.channels, args.heads, args.repeats))


if __name__ == "__main__":
    pages.prepare()
    main()

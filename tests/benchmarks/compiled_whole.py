"""Measure whole images of Stable Diffusion 1.5's shape, compiled, the decoder included.

    PYTHONPATH=tests python -m benchmarks.compiled_whole --precisions float32 bfloat16 int8
    PYTHONPATH=tests python -m benchmarks.compiled_whole --paddle
    PYTHONPATH=tests python -m benchmarks.compiled_whole --precisions float32 int8 --vnni
    PYTHONPATH=tests python -m benchmarks.compiled_whole --precisions int8 --steps 4 --peer-python PYTHON

512x512, random weights, DDIM: 20 steps with guidance, or 4 without, as of LCM. Each precision and setting has a process
of its own that waits for its turn, and so has FastSD CPU's way with --peer-python (``openvino_peer.py --image``).
Prints seconds of an image (median, lowest, highest), how many times as fast as the first line, and seconds of the first
image, which compiles and compares with Paddle; each process says what its decoder took, and its own memory (RssAnon).
Appends to compiled_whole.jsonl.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.call_memory import read_mebibytes
from benchmarks.compiled_images import use_notes
from benchmarks.compiled_turns import Seconds, append_results, measure_in_turns
from benchmarks.compiled_unet import add_precisions, be_without_bfloat16, iterate_peer, require_precisions
from benchmarks.results import parse_count, parse_size
from benchmarks.timing import measure_seconds
from ppdiffusers_tome.tools.console.output import import_quietly

GUIDANCE = {20: 7.5, 4: 1.0}  # by the number of steps
UNMERGED, PADDLE = "unmerged", "Paddle"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sd15-random", metavar="NAME")
    parser.add_argument("--size", type=parse_size, default=512, metavar="PIXELS")
    add_precisions(parser)
    parser.add_argument("--paddle", action="store_true", help="nothing compiled: by Paddle with prepare_cpu")
    parser.add_argument("--settings", nargs="+", default=[UNMERGED, "balanced"], metavar="NAME", help="presets")
    parser.add_argument("--steps", type=int, choices=GUIDANCE, default=20, help="20 with guidance (default), 4 without")
    parser.add_argument("--peer-python", type=Path, metavar="FILE", help="python for openvino_peer.py, in 4 steps")
    parser.add_argument("--images", type=parse_count, default=2, metavar="N", help="that count (2)")
    parser.add_argument("--vnni", action="store_true", help="as on a processor with AVX-512 VNNI, without bfloat16")
    parser.add_argument("--output", type=Path, default=Path("outputs"), metavar="FOLDER")
    args = parser.parse_args(argv)
    if args.vnni:
        be_without_bfloat16()  # the processes, too
    require_precisions(parser, args.precisions)
    if args.peer_python is not None and args.steps != 4:
        parser.error("--peer-python draws in 4 steps; add --steps 4")
    rows = {
        f"{precision}, {setting}": pages.iterate_in_child(iterate_images, args, precision, setting)
        for precision, setting in product([PADDLE] if args.paddle else args.precisions, args.settings)
    }
    if args.peer_python is not None:
        options = {"sizes": args.size, "variants": "openvino", "image": ""}
        for precision in args.precisions:
            rows[f"{precision}, openvino"] = iterate_peer(args.peer_python, {**options, "precision": precision})
    title = f"{args.size}x{args.size}, {args.steps} steps"
    found = measure_in_turns(rows, args.images, title, warm_up=False)
    append_results(args.output / "compiled_whole.jsonl", found, size=args.size, steps=args.steps, vnni=args.vnni)


def iterate_images(args: argparse.Namespace, precision: str, setting: str) -> Seconds:
    """Yield the seconds of images, of which the first compiles; with ``PADDLE`` nothing does."""
    if args.vnni:
        be_without_bfloat16()
    with import_quietly():
        from benchmarks.pipeline_memory import make_pipeline
        from ppdiffusers_tome import compile_cpu, prepare_cpu
    import paddle

    pipe = make_pipeline(args.model)
    if setting != UNMERGED:
        pipe.apply_tome(setting)
    embeddings = paddle.randn([1, 77, pipe.unet.config.cross_attention_dim])
    decoding: list[float] = []

    def decode_in_time(*given: Any, **kwargs: Any) -> Any:
        found: list[Any] = []
        decoding.append(measure_seconds(lambda: found.append(decode(*given, **kwargs))))
        return found[0]

    def draw() -> None:
        pipe(
            prompt_embeds=embeddings, negative_prompt_embeds=embeddings, height=args.size, width=args.size,
            num_inference_steps=args.steps, guidance_scale=GUIDANCE[args.steps], output_type="np",
        )  # fmt: skip

    with tempfile.TemporaryDirectory() as folder:
        use_notes(Path(folder))
        if precision == PADDLE:
            prepare_cpu()
        else:
            compile_cpu(pipe, precision)
        decode = pipe.vae.decode
        pipe.vae.decode = decode_in_time
        while True:
            seconds = measure_seconds(draw)
            print(
                f"{precision}, {setting}: {seconds:.1f} s, decoder {decoding[-1]:.1f} s, "
                f"{read_mebibytes('RssAnon'):.0f} MiB", flush=True,
            )  # fmt: skip
            yield seconds


if __name__ == "__main__":
    pages.prepare()
    main()

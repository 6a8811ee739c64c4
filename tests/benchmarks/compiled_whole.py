"""Measure whole images of Stable Diffusion 1.5's shape, compiled, the decoder included.

    PYTHONPATH=tests python -m benchmarks.compiled_whole --precisions float32 bfloat16 int8
    PYTHONPATH=tests python -m benchmarks.compiled_whole --precisions float32 int8 --vnni

512x512, random weights, DDIM: 20 steps with guidance, and 4 without, as of LCM. Of each precision and setting a process
of its own. Prints seconds of the first image, which compiles and compares with Paddle, of the next ones (median,
lowest, highest), and of the decoder in them, and the process's own memory (RssAnon). Appends to compiled_whole.jsonl.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.call_memory import read_mebibytes
from benchmarks.compiled_images import use_notes
from benchmarks.compiled_unet import add_precisions, be_without_bfloat16, require_precisions
from benchmarks.results import parse_count, parse_size
from benchmarks.timing import Spread, measure_seconds
from ppdiffusers_tome.tools.console.output import quiet_libraries

KINDS = {"20": (20, 7.5), "4": (4, 1.0)}  # steps, and guidance
UNMERGED = "unmerged"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sd15-random", metavar="NAME")
    parser.add_argument("--size", type=parse_size, default=512, metavar="PIXELS")
    add_precisions(parser)
    parser.add_argument("--settings", nargs="+", default=[UNMERGED, "balanced"], metavar="NAME", help="presets")
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=KINDS, metavar="STEPS", help="20 or 4 (both)")
    parser.add_argument("--images", type=parse_count, default=2, metavar="N", help="after the first (2)")
    parser.add_argument("--vnni", action="store_true", help="as on a processor with AVX-512 VNNI, without bfloat16")
    parser.add_argument("--output", type=Path, default=Path("outputs"), metavar="FOLDER")
    args = parser.parse_args(argv)
    require_precisions(parser, args.precisions)
    args.output.mkdir(parents=True, exist_ok=True)
    for precision, setting in product(args.precisions, args.settings):
        for found in pages.run_in_child(measure, args, precision, setting):
            spreads = [Spread.from_values(found[name]).format("{:.3g}".format) for name in ("seconds", "decoding")]
            print(
                f"{precision}, {setting}, {found['kind']} steps: first {found['first']:.0f} s, next {spreads[0]} s, "
                f"decoder {spreads[1]} s, {found['own_mib']:.0f} MiB", flush=True,
            )  # fmt: skip
            with (args.output / "compiled_whole.jsonl").open("a") as file:
                file.write(json.dumps({"precision": precision, "setting": setting, "vnni": args.vnni, **found}) + "\n")


def measure(args: argparse.Namespace, precision: str, setting: str) -> list[dict[str, Any]]:
    """Measure both kinds of image in this process."""
    if args.vnni:
        be_without_bfloat16()
    with quiet_libraries():
        from benchmarks.pipeline_memory import make_pipeline
        from ppdiffusers_tome import compile_cpu
    import paddle

    pipe = make_pipeline(args.model)
    if setting != UNMERGED:
        pipe.apply_tome(setting)
    embeddings = paddle.randn([1, 77, pipe.unet.config.cross_attention_dim])
    results = []
    with tempfile.TemporaryDirectory() as folder:
        use_notes(Path(folder))
        compile_cpu(pipe, precision)
        decode, decoding = pipe.vae.decode, list[float]()

        def decode_in_time(*given: Any, **kwargs: Any) -> Any:
            found: list[Any] = []
            decoding.append(measure_seconds(lambda: found.append(decode(*given, **kwargs))))
            return found[0]

        pipe.vae.decode = decode_in_time
        for kind in args.kinds:
            steps, guidance = KINDS[kind]

            def draw(steps: int = steps, guidance: float = guidance) -> None:
                pipe(
                    prompt_embeds=embeddings, negative_prompt_embeds=embeddings, height=args.size, width=args.size,
                    num_inference_steps=steps, guidance_scale=guidance, output_type="np",
                )  # fmt: skip

            decoding.clear()
            first, *seconds = (measure_seconds(draw) for _ in range(args.images + 1))
            results.append({
                "kind": kind, "first": first, "seconds": seconds, "decoding": decoding[1:],
                "own_mib": read_mebibytes("RssAnon"),
            })  # fmt: skip
    return results


if __name__ == "__main__":
    pages.prepare()
    main()

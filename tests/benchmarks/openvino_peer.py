"""Measure diffusers' UNet by OpenVINO and PyTorch, unmerged and with tomesd.

    venv-with-openvino/bin/python tests/benchmarks/openvino_peer.py --precision bfloat16

It needs torch, diffusers, tomesd and openvino (pip install torch diffusers tomesd==0.1.3 openvino), and neither Paddle
nor this package. A line of JSON for each size and variant: seconds of calls after the first, of making the program (by
OpenVINO: tracing, converting, compiling, and what the first call takes above the others), peak memory, and the
difference of OpenVINO's result from PyTorch's in float32 (root mean square over that of the result). int8 is by NNCF
(pip install nncf) with its defaults for transformers, calibrated by this call; the rest is in bfloat16 where there is.
--image adds seconds of an image as by LCM: four calls without guidance, and Stable Diffusion's decoder. --waits prints
the seconds of a call, or of such an image, for each line that it is given; the first ones are of making the program.
``compiled_unet --peer-python`` runs it in turns with our variants, a process a row. To keep freed memory as
``ppdiffusers-tome`` does, set MALLOC_MMAP_MAX_=0 and MALLOC_TRIM_THRESHOLD_=8589934592.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from random_models import RANDOM_UNETS, SD15_VAE

RATIO, TEXT_TOKENS = 0.5, 77
VARIANTS = ("torch", "torch-tomesd", "openvino", "openvino-tomesd")
PRECISIONS = ("float32", "bfloat16", "int8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=RANDOM_UNETS, default="sd15-random")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 768, 1024], metavar="PIXELS")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--batch", type=int, default=1, metavar="N")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--image", action="store_true", help="of OpenVINO: time an image in four calls, too")
    parser.add_argument("--waits", action="store_true", help="compute when a line comes")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="timed calls after the first (3)")
    args = parser.parse_args()
    if args.precision == "bfloat16" and not has_bfloat16():
        sys.exit("--precision bfloat16 needs a processor that computes in it (AMX or AVX-512 BF16); take float32")
    for size in args.sizes:
        for variant in args.variants:
            print(json.dumps(measure(args, size, variant)), flush=True)
            gc.collect()


def has_bfloat16() -> bool:
    """Return whether the processor computes in bfloat16."""
    if os.environ.get("ONEDNN_MAX_CPU_ISA") == "AVX512_CORE_VNNI":  # --vnni of our benchmarks
        return False
    return bool(re.search(r"\b(amx_bf16|avx512_bf16|bf16)\b", Path("/proc/cpuinfo").read_text()))


def measure(args: argparse.Namespace, size: int, variant: str) -> dict[str, Any]:
    """Return a row: one variant at one size."""
    import diffusers
    import numpy as np
    import tomesd
    import torch

    warnings.simplefilter("ignore")  # of tracing: shapes and ratios are constants of the program, as they should be
    diffusers.logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(**RANDOM_UNETS[args.model]).eval()
    generator, side = torch.Generator().manual_seed(0), size // 8
    latent = torch.randn(args.batch, 4, side, side, generator=generator)
    text = torch.randn(args.batch, TEXT_TOKENS, unet.config.cross_attention_dim, generator=generator)
    inputs = (latent, torch.tensor(999), text)
    if variant.endswith("tomesd"):
        # Random destinations would be drawn by PyTorch for each call, or be constants of the program.
        tomesd.apply_patch(unet, ratio=RATIO, use_rand=False)
    with torch.no_grad():
        begin = time.perf_counter()
        if variant.startswith("openvino"):
            call = partial(unet, return_dict=False)
            run = compile_model(call, inputs, args.precision, args.threads)
        else:
            dtype = getattr(torch, args.precision)
            run = partial(unet.to(dtype), latent.to(dtype), inputs[1], text.to(dtype))
        draw = partial(draw_image, run, compile_decoder(latent, args)) if args.image else run
        made = time.perf_counter()
        if args.waits:
            making = made - begin
            for _ in sys.stdin:
                print(making + measure_seconds(draw), flush=True)
                making = 0
            sys.exit()
        seconds = [measure_seconds(run) for _ in range(args.repeats + 1)]
        row = {"size": size, "batch": args.batch, "precision": args.precision, "variant": variant,
               "making": made - begin + seconds[0] - statistics.median(seconds[1:]), "seconds": seconds[1:],
               "peak_mib": read_peak()}  # fmt: skip
        if variant.startswith("openvino"):
            expected = unet(*inputs).sample.numpy()
            row["difference"] = float(np.sqrt(np.mean((run() - expected) ** 2) / np.mean(expected**2)))
            if args.image:
                draw()
                row["image"] = [measure_seconds(draw) for _ in range(args.repeats)]
    return row


def measure_seconds(work: Callable[[], Any]) -> float:
    """Run a piece of work and return its seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def draw_image(run: Callable[[], Any], decode: Callable[[], Any]) -> None:
    """Compute what an image takes: four calls of the UNet, and the decoder."""
    for _ in range(4):
        run()
    decode()


def compile_decoder(latent: Any, args: argparse.Namespace) -> Callable[[], Any]:
    """Return a call of Stable Diffusion's decoder, in float, as a program of OpenVINO."""
    import diffusers

    decoder = diffusers.AutoencoderKL(**SD15_VAE).eval()
    precision = "float32" if args.precision == "float32" else "bfloat16"
    return compile_model(partial(decoder.decode, return_dict=False), (latent,), precision, args.threads)


def compile_model(
    function: Callable[..., tuple[Any]], inputs: tuple[Any, ...], precision: str, threads: int
) -> Callable[[], Any]:
    """Return a call of a model as a program of OpenVINO."""
    import openvino
    import torch

    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = getattr(function.func, "__self__", function.func)

        def forward(self, *tensors: Any) -> Any:
            return function(*tensors)[0]

    model = openvino.convert_model(Positional(), example_input=inputs, input=[list(x.shape) for x in inputs])
    arrays = [x.numpy() for x in inputs]
    if precision == "int8":
        import nncf

        calls = nncf.Dataset([dict(enumerate(arrays))])
        model = nncf.quantize(model, calls, subset_size=1, model_type=nncf.ModelType.TRANSFORMER)
    hint = "bf16" if precision != "float32" and has_bfloat16() else "f32"
    settings = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": threads}
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()

    def run() -> Any:
        request.infer(arrays, share_inputs=True)
        return request.output_tensors[0].data

    return run


def read_peak() -> float:
    """Return the peak memory of this process in MiB."""
    return int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1]) / 2**10


if __name__ == "__main__":
    main()

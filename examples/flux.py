"""FLUX with a cache over steps, on a GPU.

It needs a ppdiffusers newer than 0.29.0, from PaddleMIX's source.

    python flux.py                                            # FLUX.1-dev, downloaded once
    python flux.py --model black-forest-labs/FLUX.1-schnell --steps 4 --guidance 0     # too few steps for the cache
"""
# ruff: noqa: E402  (Paddle takes seconds to import, so arguments are checked before)

import argparse
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="black-forest-labs/FLUX.1-dev")
parser.add_argument("--output", type=Path, default=Path("flux.png"))
parser.add_argument("--size", type=int, default=1024, help="height and width in pixels, a multiple of 16")
parser.add_argument("--steps", type=int, default=28)
parser.add_argument("--guidance", type=float, default=3.5)
args = parser.parse_args()

if args.size < 16 or args.size % 16:
    parser.error(f"--size {args.size} must be a multiple of 16 above 0, such as {max(16, round(args.size / 16) * 16)}")
if args.output.suffix not in (".png", ".jpg") or not args.output.absolute().parent.is_dir():
    parser.error(f"--output {args.output} must be a PNG or JPEG file in a folder that exists")
if args.steps < 1:
    parser.error(f"--steps {args.steps} must be 1 or more; 28 is usual")

import paddle
import ppdiffusers

import ppdiffusers_tome  # noqa: F401  (adds apply_tome to pipelines)

if not hasattr(ppdiffusers, "FluxPipeline"):
    parser.error(
        f"ppdiffusers {ppdiffusers.__version__} has no FLUX; install it from PaddleMIX's source "
        "(docs/en/get-started/installation.md)"
    )
if not paddle.get_device().startswith("gpu"):
    parser.error("FLUX's attention in ppdiffusers has no CPU kernel; run this on a GPU")

pipe = ppdiffusers.FluxPipeline.from_pretrained(args.model, paddle_dtype=paddle.bfloat16)
pipe.apply_tome(ratio=0, cache=0.2)  # from 9 steps on; for less memory (ratio=0.5): image tokens, never the prompt's
paddle.seed(0)
image = pipe(
    "a photo of an astronaut riding a horse on mars", height=args.size, width=args.size,
    num_inference_steps=args.steps, guidance_scale=args.guidance,
).images[0]  # fmt: skip
image.save(args.output)
print(f"{args.output}: {pipe.tome}")

pipe.remove_tome()  # the pipeline is exactly as before

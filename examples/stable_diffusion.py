"""Stable Diffusion with token merging; on a GPU below 1024x1024 a cache over steps.

    python stable_diffusion.py                # Stable Diffusion 1.5, downloaded once; best on a GPU
    python stable_diffusion.py --offline      # the small model of photographs in this repository; runs on any CPU
"""
# ruff: noqa: E402  (Paddle takes seconds to import, so arguments are checked before)

import argparse
import zlib  # noqa: F401  (before Paddle 2.6, whose own zlib would break Python's)
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--offline", action="store_true", help="use the small model instead of Stable Diffusion 1.5")
parser.add_argument("--output", type=Path, default=Path("stable_diffusion.png"))
parser.add_argument("--size", type=int, default=512, help="height and width in pixels (default: the models' own, 512)")
parser.add_argument("--steps", type=int, default=20)
args = parser.parse_args()

if args.size < 8 or args.size % 8:
    parser.error(f"--size {args.size} must be a multiple of 8 above 0, such as {max(8, round(args.size / 8) * 8)}")
if args.steps < 1:
    parser.error(f"--steps {args.steps} must be 1 or more; 20 is usual")
if args.output.suffix not in (".png", ".jpg") or not args.output.absolute().parent.is_dir():
    parser.error(f"--output {args.output} must be a PNG or JPEG file in a folder that exists")
if args.size < 384:
    print(f"at {args.size}x{args.size} images may be smears: the models were made for 512x512 pixels")

import paddle
from ppdiffusers import DDIMScheduler, StableDiffusionPipeline

from ppdiffusers_tome import compile_cpu, prepare_cpu

if args.offline:
    model = Path(__file__).parent / "models" / "photographs"
    prompt, guidance_scale = "a photo of a cat", 1.5
else:
    model = "runwayml/stable-diffusion-v1-5"
    prompt, guidance_scale = "a photo of an astronaut riding a horse on mars", 7.5

# float16 halves the memory, but Paddle runs it on GPUs only.
on_gpu = paddle.get_device().startswith("gpu")
dtype = paddle.float16 if on_gpu else paddle.float32
try:
    pipe = StableDiffusionPipeline.from_pretrained(str(model), paddle_dtype=dtype)
except OSError as error:
    raise SystemExit(f"{error}\nWithout a network, run this with --offline") from None
if on_gpu:
    pipe.enable_xformers_memory_efficient_attention()  # before or after apply_tome, both work
else:
    prepare_cpu()  # all cores, and what makes a CPU faster

pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config)  # with PNDM, as it loads, merged images are worse
if on_gpu and args.size < 1024:
    pipe.apply_tome(ratio=0, cache=0.2)  # attention takes too little of the time there for merging to pay
else:
    pipe.apply_tome("balanced")
if not on_gpu and paddle.__version__ >= "3":
    compile_cpu(pipe)  # the first image waits for the compiling
paddle.seed(0)
image = pipe(
    prompt, height=args.size, width=args.size, num_inference_steps=args.steps, guidance_scale=guidance_scale
).images[0]
image.save(args.output)
print(f"{args.output}: {pipe.tome}")

pipe.remove_tome()  # the pipeline is exactly as before

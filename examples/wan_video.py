"""Wan 2.1 video with a cache over steps, on a GPU.

It needs a ppdiffusers newer than 0.29.0, from PaddleMIX's source.

    python wan_video.py                       # the model of 1.3 billion parameters, downloaded once
    python wan_video.py --merge-frames 2      # tokens merge over two frames at a time, for less memory
"""
# ruff: noqa: E402  (Paddle takes seconds to import, so arguments are checked before)

import argparse
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="Wan-AI/Wan2.1-T2V-1.3B-Diffusers")
parser.add_argument("--output", type=Path, default=Path("wan.mp4"))
parser.add_argument("--height", type=int, default=480, help="in pixels, a multiple of 16")
parser.add_argument("--width", type=int, default=832, help="in pixels, a multiple of 16")
parser.add_argument("--frames", type=int, default=81, help="a multiple of 4, plus 1")
parser.add_argument("--merge-frames", type=int, metavar="N", help="merge tokens over N frames, in place of the cache")
args = parser.parse_args()

if min(args.height, args.width) < 16 or args.height % 16 or args.width % 16 or args.frames < 1 or args.frames % 4 != 1:
    parser.error("--height and --width must be multiples of 16, and --frames one of 4 plus 1, such as 480, 832 and 81")
if args.merge_frames is not None and args.merge_frames < 1:
    parser.error(f"--merge-frames {args.merge_frames} must be 1 or more")
if args.output.suffix != ".mp4" or not args.output.absolute().parent.is_dir():
    parser.error(f"--output {args.output} must be an MP4 file in a folder that exists")

import paddle
import ppdiffusers
from ppdiffusers.utils import export_to_video

import ppdiffusers_tome  # noqa: F401  (adds apply_tome to pipelines)

if not hasattr(ppdiffusers, "WanPipeline"):
    parser.error(
        f"ppdiffusers {ppdiffusers.__version__} has no Wan; install it from PaddleMIX's source "
        "(docs/en/get-started/installation.md)"
    )
if not paddle.get_device().startswith("gpu"):
    parser.error("a video of this size takes days on a CPU; run this on a GPU")

pipe = ppdiffusers.WanPipeline.from_pretrained(args.model, paddle_dtype=paddle.bfloat16)
if args.merge_frames is None:
    pipe.apply_tome(ratio=0, cache=0.2)
else:
    pipe.apply_tome(ratio=0.5, tile=16, st=args.merge_frames)  # tiles make the matching cheap
paddle.seed(0)
frames = pipe(
    "a cat walks on the grass", height=args.height, width=args.width, num_frames=args.frames, guidance_scale=5.0
).frames[0]
export_to_video(frames, str(args.output), fps=15)
print(f"{args.output}: {pipe.tome}")

pipe.remove_tome()  # the pipeline is exactly as before

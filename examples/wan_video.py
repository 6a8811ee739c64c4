"""Make a video with Wan 2.1 and a cache over steps.

    python wan_video.py                       # the model of 1.3 billion parameters, downloaded once
    python wan_video.py --merge-frames 2      # tokens merge over two frames at a time, for less memory

It needs a GPU, and the ppdiffusers of PaddleMIX's source (docs/en/get-started/installation.md). Not run yet, as neither
was at hand: Wan's weights, a GPU.
"""

import argparse
from pathlib import Path

import ppdiffusers_tome  # noqa: F401  (gives every pipeline apply_tome)


def make_video(args):
    """Make a video and save it."""
    import paddle  # takes seconds, so arguments are checked before

    if not paddle.get_device().startswith("gpu"):
        raise SystemExit("a video of this size takes days on a CPU; run this on a GPU")
    from ppdiffusers import WanPipeline
    from ppdiffusers.utils import export_to_video

    pipe = WanPipeline.from_pretrained(args.model, paddle_dtype=paddle.bfloat16)
    if args.merge_frames:
        pipe.apply_tome(ratio=0.5, tile=16, st=args.merge_frames)  # tiles make the matching cheap
    else:
        pipe.apply_tome(ratio=0, cache=0.2)
    paddle.seed(0)
    settings = dict(height=args.height, width=args.width, num_frames=args.frames, guidance_scale=5.0)
    frames = pipe("a cat walks on the grass", **settings).frames[0]
    export_to_video(frames, str(args.output), fps=15)
    print(f"{args.output}: {pipe.tome}")
    pipe.remove_tome()  # the pipeline is exactly as before


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Wan-AI/Wan2.1-T2V-1.3B-Diffusers")
    parser.add_argument("--output", type=Path, default=Path("wan.mp4"))
    parser.add_argument("--height", type=int, default=480, help="in pixels, a multiple of 16")
    parser.add_argument("--width", type=int, default=832, help="in pixels, a multiple of 16")
    parser.add_argument("--frames", type=int, default=81, help="a multiple of 4, plus 1")
    parser.add_argument("--merge-frames", type=int, default=0, metavar="N", help="merge over N frames, without a cache")
    given = parser.parse_args()
    if min(given.height, given.width) < 16 or given.height % 16 or given.width % 16:
        parser.error(f"--height {given.height} --width {given.width} must be multiples of 16")
    if given.frames < 1 or given.frames % 4 != 1:
        parser.error(f"--frames {given.frames} must be a multiple of 4 plus 1, such as 81")
    if given.merge_frames < 0:
        parser.error(f"--merge-frames {given.merge_frames} must be 1 or more; omit it for a cache over steps")
    if given.output.suffix != ".mp4":
        parser.error(f"--output {given.output} must be an .mp4 file")
    given.output.parent.mkdir(parents=True, exist_ok=True)
    make_video(given)

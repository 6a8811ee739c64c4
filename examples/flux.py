"""Draw with FLUX and a cache over steps, on a GPU.

    python flux.py                                            # FLUX.1-dev, downloaded once
    python flux.py --model black-forest-labs/FLUX.1-schnell --steps 4 --guidance 0     # too few steps for the cache

It needs the ppdiffusers of PaddleMIX's source (docs/en/get-started/installation.md). Not run yet, as neither was at
hand: FLUX's weights, a GPU.
"""

import argparse
from pathlib import Path

import ppdiffusers_tome  # noqa: F401  (gives every pipeline apply_tome)


def draw(args):
    """Draw an image and save it."""
    import paddle  # takes seconds, so arguments are checked before

    if not paddle.get_device().startswith("gpu"):
        raise SystemExit("FLUX's attention in ppdiffusers has no CPU kernel; run this on a GPU")
    from ppdiffusers import FluxPipeline

    pipe = FluxPipeline.from_pretrained(args.model, paddle_dtype=paddle.bfloat16)
    pipe.apply_tome(ratio=0, cache=0.2)  # from 9 steps on; for less memory ratio=0.5 merges image tokens, never text
    paddle.seed(0)
    settings = dict(height=args.size, width=args.size, num_inference_steps=args.steps, guidance_scale=args.guidance)
    pipe("a photo of an astronaut riding a horse on mars", **settings).images[0].save(args.output)
    print(f"{args.output}: {pipe.tome}")
    pipe.remove_tome()  # the pipeline is exactly as before


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="black-forest-labs/FLUX.1-dev")
    parser.add_argument("--output", type=Path, default=Path("flux.png"))
    parser.add_argument("--size", type=int, default=1024, help="height and width in pixels, a multiple of 16")
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--guidance", type=float, default=3.5)
    given = parser.parse_args()
    if given.size < 16 or given.size % 16 or given.steps < 1 or given.output.suffix not in (".png", ".jpg"):
        asked = f"--size {given.size} --steps {given.steps} --output {given.output}"
        parser.error(f"{asked}: the size must be a multiple of 16, steps 1 or more, and the output a .png or .jpg file")
    given.output.parent.mkdir(parents=True, exist_ok=True)
    draw(given)

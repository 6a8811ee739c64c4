"""Draw with Stable Diffusion and token merging.

    python stable_diffusion.py --offline      # a small model of ten photographs, in this repository; any CPU
    python stable_diffusion.py                # Stable Diffusion 1.5, downloaded once

Run with --offline on a CPU; not yet with Stable Diffusion's weights, nor on a GPU.
"""

import argparse
import time
from pathlib import Path

import ppdiffusers_tome  # gives every pipeline apply_tome


def draw(args):
    """Draw an image merged and unmerged; save both."""
    import paddle  # takes seconds, so arguments are checked before
    from ppdiffusers import DDIMScheduler, StableDiffusionPipeline

    if args.offline:
        model, prompt, guidance_scale = Path(__file__).parent / "models" / "photographs", "a photo of a cat", 1.5
    else:
        model, prompt, guidance_scale = "runwayml/stable-diffusion-v1-5", "a photo of an astronaut on a horse", 7.5
    on_gpu = paddle.get_device().startswith("gpu")
    dtype = paddle.float16 if on_gpu else paddle.float32
    try:
        pipe = StableDiffusionPipeline.from_pretrained(str(model), paddle_dtype=dtype)
    except OSError as error:
        raise SystemExit(f"{error}\nWithout a network add --offline.") from error
    # Stable Diffusion 1.5 loads PNDM, with which merging harmed small images; DDIM is safer.
    pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config)

    if on_gpu:
        pipe.enable_xformers_memory_efficient_attention()
        pipe.apply_tome(ratio=0, cache=0.2)  # above 1024x1024 merging is faster: apply_tome("balanced")
    else:
        pipe.apply_tome("balanced")
        if paddle.__version__.startswith("2"):
            ppdiffusers_tome.prepare_cpu()  # all cores, and what makes a CPU faster
        else:
            ppdiffusers_tome.compile_cpu(pipe)  # OpenVINO computes; the first image waits for the compiling

    settings = dict(height=args.size, width=args.size, num_inference_steps=args.steps, guidance_scale=guidance_scale)

    def draw_twice():
        """Draw twice from the same noise; return the second image and its seconds."""
        for _ in range(2):  # the first one also compiles
            paddle.seed(0)
            start = time.perf_counter()
            image = pipe(prompt, **settings).images[0]
        return image, time.perf_counter() - start

    image, seconds = draw_twice()
    image.save(args.output)
    print(f"{args.output}: {seconds:.1f} s, {pipe.tome}")
    pipe.remove_tome()
    unmerged, unmerged_seconds = draw_twice()
    unmerged_output = args.output.with_stem(f"{args.output.stem}-unmerged")
    unmerged.save(unmerged_output)
    print(f"{unmerged_output}: {unmerged_seconds:.1f} s, {unmerged_seconds / seconds:.2f} times as long")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--offline", action="store_true", help="use the small model instead of Stable Diffusion 1.5")
    parser.add_argument("--output", type=Path, default=Path("stable_diffusion.png"))
    parser.add_argument("--size", type=int, default=512, help="height and width in pixels; below 384 it may smear")
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    if given.size < 8 or given.size % 8 or given.steps < 1 or given.output.suffix not in (".png", ".jpg"):
        asked = f"--size {given.size} --steps {given.steps} --output {given.output}"
        parser.error(f"{asked}: the size must be a multiple of 8, steps 1 or more, and the output a .png or .jpg file")
    given.output.parent.mkdir(parents=True, exist_ok=True)
    draw(given)

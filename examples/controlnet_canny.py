"""Guide Stable Diffusion by Canny edges, with token merging.

    python controlnet_canny.py --offline      # small models of ten photographs, in this repository; any CPU
    python controlnet_canny.py --image photo.png --prompt "a cat on a table"     # Stable Diffusion 1.5, downloaded once

Run with --offline on a CPU; not yet with Stable Diffusion's weights, nor on a GPU.
"""

import argparse
from pathlib import Path

import ppdiffusers_tome  # gives every pipeline apply_tome
from ppdiffusers_tome.tools.edges import detect_edges, fit_image
from ppdiffusers_tome.tools.images import read_image

FOLDER = Path(__file__).parent


def draw(args, photo):
    """Draw an image along the edges of a photo, and save it."""
    photo = fit_image(photo, args.size, args.size)  # a square crop of its middle
    edges = detect_edges(photo, low=100, high=200)  # white on black

    import paddle  # takes seconds, so arguments are checked before
    from ppdiffusers import ControlNetModel, DDIMScheduler, StableDiffusionControlNetPipeline

    if args.offline:
        model, controlnet, guidance_scale = FOLDER / "models" / "photographs", FOLDER / "models" / "controlnet", 1.5
    else:
        model, controlnet, guidance_scale = "runwayml/stable-diffusion-v1-5", "lllyasviel/sd-controlnet-canny", 7.5
    on_gpu = paddle.get_device().startswith("gpu")
    dtype = paddle.float16 if on_gpu else paddle.float32
    try:
        controlnet = ControlNetModel.from_pretrained(str(controlnet), paddle_dtype=dtype)
        pipe = StableDiffusionControlNetPipeline.from_pretrained(str(model), controlnet=controlnet, paddle_dtype=dtype)
    except OSError as error:
        raise SystemExit(f"{error}\nWithout a network add --offline.") from error
    # Stable Diffusion 1.5 loads PNDM, with which merging harmed small images; DDIM is safer.
    pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config)

    if on_gpu:
        pipe.enable_xformers_memory_efficient_attention()
        pipe.apply_tome(ratio=0, cache=0.2)  # above 1024x1024 merging is faster: apply_tome("balanced")
    else:
        pipe.apply_tome("balanced")  # in the UNet and the ControlNet
        if paddle.__version__.startswith("2"):
            ppdiffusers_tome.prepare_cpu()  # all cores, and what makes a CPU faster
        else:
            ppdiffusers_tome.compile_cpu(pipe)  # OpenVINO computes; the first image waits for the compiling

    paddle.seed(0)
    image = pipe(args.prompt, edges, num_inference_steps=args.steps, guidance_scale=guidance_scale).images[0]
    image.save(args.output)
    print(f"{args.output}: {pipe.tome}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--offline", action="store_true", help="use the small models instead of Stable Diffusion 1.5")
    parser.add_argument("--image", type=Path, default=FOLDER / "motorcycle.jpg", help="its edges guide the image")
    parser.add_argument("--prompt", default="a photo of a motorcycle")
    parser.add_argument("--output", type=Path, default=Path("controlnet_canny.png"))
    parser.add_argument("--size", type=int, default=512, help="height and width in pixels; below 384 it may smear")
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    if given.size < 8 or given.size % 8 or given.steps < 1 or given.output.suffix not in (".png", ".jpg"):
        asked = f"--size {given.size} --steps {given.steps} --output {given.output}"
        parser.error(f"{asked}: the size must be a multiple of 8, steps 1 or more, and the output a .png or .jpg file")
    try:
        photo = read_image(given.image)
    except ppdiffusers_tome.ToMeValueError as error:
        parser.error(f"--image {error}")
    given.output.parent.mkdir(parents=True, exist_ok=True)
    draw(given, photo)

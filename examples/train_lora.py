"""Train a LoRA with token merging in the first steps.

    python train_lora.py                    # the small model, on four new photographs; any CPU, about two minutes
    python train_lora.py --model runwayml/stable-diffusion-v1-5 --images photos --prompt "a photo of my dog"

OUTPUT is a folder for pipe.load_lora_weights(OUTPUT, from_diffusers=False). The first line ran; Stable Diffusion's
weights and a GPU were not tried.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from PIL import Image
from skimage import data

import ppdiffusers_tome  # gives models apply_tome
from ppdiffusers_tome.tools.edges import fit_image
from ppdiffusers_tome.tools.images import read_image

SMALL_MODEL = Path(__file__).parent / "models" / "photographs"
PHOTOGRAPHS = ("grass", "gravel", "immunohistochemistry", "moon")  # of scikit-image


def train(args, photographs):
    """Train a LoRA and save it."""
    import paddle  # these take seconds, so arguments and images are checked before
    from ppdiffusers import DDPMScheduler, StableDiffusionPipeline

    ppdiffusers_tome.prepare_cpu()  # all cores; on a GPU it is not needed
    pipe = StableDiffusionPipeline.from_pretrained(args.model)
    unet, scheduler = pipe.unet, DDPMScheduler.from_config(pipe.scheduler.config)
    size = args.size or unet.config.sample_size * pipe.vae_scale_factor
    prompts = [args.prompt or f"a photo of {name}" for name, _ in photographs]
    latents, texts = encode(pipe, [fit_image(image, size, size) for _, image in photographs], prompts)

    for parameter in unet.parameters():
        parameter.stop_gradient = True  # only the LoRA learns
    paddle.seed(args.seed)
    layers = add_lora(find_linears(unet), args.rank)
    parameters = [parameter for layer in layers.values() for parameter in layer.parameters()]
    optimizer = paddle.optimizer.AdamW(args.learning_rate, parameters=parameters)

    unet.apply_tome("balanced")
    merged_steps, rng = round(args.merged_part * args.steps), np.random.default_rng(args.seed)
    start = time.perf_counter()
    for step in range(args.steps):
        if step == merged_steps:
            unet.remove_tome()  # the last steps are those of the model that will draw
        rows, timesteps = (paddle.to_tensor(rng.integers(0, end, args.batch)) for end in (len(latents), 1000))
        noise = paddle.randn([args.batch, *latents.shape[1:]])
        loss = compute_loss(unet, scheduler, latents[rows], texts[rows], noise, timesteps)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        if step + 1 in (merged_steps, args.steps):
            seconds = (time.perf_counter() - start) / (step + 1)
            kind = "merged" if unet.tome else "unmerged"
            print(f"step {step + 1}, {kind}: loss {float(loss):.3f}, {seconds:.2f} s a step so far")
    save_lora(layers, args.output)
    print(args.output)


def encode(pipe, images, prompts):
    """Return latents and text embeddings, which training does not change."""
    import paddle

    latents, texts, longest = [], [], pipe.tokenizer.model_max_length
    with paddle.no_grad():
        for image, prompt in zip(images, prompts, strict=True):
            pixels = np.asarray(image, np.float32).transpose(2, 0, 1)
            mean = pipe.vae.encode(paddle.to_tensor(pixels[None] / 127.5 - 1)).latent_dist.mean
            latents.append(mean * pipe.vae.config.scaling_factor)
            padded = dict(padding="max_length", max_length=longest, truncation=True)
            tokens = pipe.tokenizer(prompt, return_tensors="pd", **padded)
            texts.append(pipe.text_encoder(tokens.input_ids)[0])
    return paddle.concat(latents), paddle.concat(texts)


def find_linears(unet):
    """Return the linear layers of all attention, by name."""
    from ppdiffusers.models.attention_processor import Attention

    linears = {}
    for name, layer in unet.named_sublayers():
        if isinstance(layer, Attention):
            linears |= {f"{name}.{part}": getattr(layer, part) for part in ("to_q", "to_k", "to_v")}
            linears[f"{name}.to_out.0"] = layer.to_out[0]
    return linears


def add_lora(linears, rank):
    """Add a LoRA to linear layers; return its layers by name."""
    from ppdiffusers.models.lora import LoRALinearLayer

    layers = {name: LoRALinearLayer(each.in_features, each.out_features, rank) for name, each in linears.items()}
    for name, linear in linears.items():
        linear.set_lora_layer(layers[name])
    return layers


def compute_loss(unet, scheduler, latents, texts, noise, timesteps):
    """Return the mean squared error of the predicted noise or velocity."""
    is_velocity = scheduler.config.prediction_type == "v_prediction"
    target = scheduler.get_velocity(latents, noise, timesteps) if is_velocity else noise
    predicted = unet(scheduler.add_noise(latents, noise, timesteps), timesteps, texts).sample
    return ((predicted - target) ** 2).mean()


def save_lora(layers, folder):
    """Write a LoRA's layers into a folder."""
    from ppdiffusers import StableDiffusionPipeline

    weights = {
        f"{name}.lora.{part}": weight for name, layer in layers.items() for part, weight in layer.state_dict().items()
    }
    StableDiffusionPipeline.save_lora_weights(str(folder), unet_lora_layers=weights, to_diffusers=False)


def read_photographs(folder):
    """Return names and images of a folder, or else of scikit-image."""
    if folder is None:
        return [(name, Image.fromarray(getattr(data, name)()).convert("RGB")) for name in PHOTOGRAPHS]
    if not folder.is_dir():
        raise SystemExit(f"--images {folder} is no folder")
    files = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in Image.registered_extensions()]
    if not files:
        raise SystemExit(f"--images {folder} holds no image")
    return [(path.stem, read_image(path)) for path in files]


def parse_arguments():
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(SMALL_MODEL), help="default: the small model of photographs")
    parser.add_argument("--images", type=Path, help="folder of images (default: four photographs of scikit-image)")
    parser.add_argument("--prompt", help="of all images (default: 'a photo of' and the file's name)")
    parser.add_argument("--merged-part", type=float, default=0.8, help="of the steps, the first ones (default: 0.8)")
    parser.add_argument("--steps", type=int, default=60, help="default: 60")
    parser.add_argument("--batch", type=int, default=1, help="default: 1")
    parser.add_argument("--size", type=int, help="of an image in pixels (default: the model's)")
    parser.add_argument("--rank", type=int, default=8, help="of the LoRA (default: 8)")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="default: 0.001")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--output", type=Path, default=Path("outputs/lora"), help="default: outputs/lora")
    args = parser.parse_args()
    if min(args.steps, args.batch, args.rank) < 1:
        parser.error("--steps, --batch and --rank must be 1 or more")
    if not 0 <= args.merged_part <= 1:
        parser.error(f"--merged-part must be from 0 to 1, not {args.merged_part}")
    if args.output.is_file():
        parser.error(f"--output {args.output} is a file; give a folder")
    if args.size is not None and (args.size < 8 or args.size % 8):
        parser.error(f"--size must be a multiple of 8, not {args.size}")
    return args


if __name__ == "__main__":
    given = parse_arguments()
    train(given, read_photographs(given.images))

"""Train a LoRA with token merging, and compare its loss and speed.

    python train_lora.py                    # the small model, on new photographs; runs on any CPU
    python train_lora.py --model runwayml/stable-diffusion-v1-5 --images photos --prompt "a photo of my dog"

It trains the same LoRA three times, with the same crops, noise and timesteps: unmerged, merged in the first part of the
steps (--merged-part), and merged throughout. The held-out loss is always that of the unmerged model. OUTPUT gets
results.json, written at every evaluation, and a LoRA of each training for load_lora_weights. Not run yet, as neither
was at hand: Stable Diffusion's weights, a GPU.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
from PIL import Image
from skimage import data

import ppdiffusers_tome
from ppdiffusers_tome.tools.images import read_image
from ppdiffusers_tome.tools.measure.meter import Meter

SMALL_MODEL = Path(__file__).parent / "models" / "photographs"
PHOTOGRAPHS = ("grass", "gravel", "immunohistochemistry", "moon")  # of scikit-image
MEASURES = ("seconds", "processor_seconds", "peak_bytes")  # medians per step; other programs do not affect the second
HELD_OUT_CROPS, HELD_OUT_TIMESTEPS = 2, (125, 375, 625, 875)


def train(args, photographs):
    """Train the same LoRA unmerged, partly merged and merged, in turns."""
    ppdiffusers_tome.prepare_cpu()
    pipe = StableDiffusionPipeline.from_pretrained(args.model)
    unet, scheduler = pipe.unet, DDPMScheduler.from_config(pipe.scheduler.config)
    for parameter in unet.parameters():
        parameter.stop_gradient = True  # only the LoRA learns
    size = args.size or unet.config.sample_size * 2 ** (len(pipe.vae.config.block_out_channels) - 1)
    rng, encoded = np.random.default_rng(args.seed), {}
    for held_out, count in ((False, args.crops), (True, HELD_OUT_CROPS)):
        rows = [(crop, args.prompt or f"a photo of {name}") for name, image in photographs
                for crop in cut_crops(image, count, rng, held_out=held_out)]  # fmt: skip
        with paddle.no_grad():
            encoded[held_out] = encode(pipe, rows, size)
    num_train, num_held_out = len(encoded[False][0]), len(encoded[True][0])

    def make_batch(rng, crops, timesteps, *, held_out):
        """Return latents, texts, noise and timesteps of some crops."""
        latents, texts = (values[paddle.to_tensor(crops)] for values in encoded[held_out])
        noise = paddle.to_tensor(rng.standard_normal(latents.shape, np.float32))
        return latents, texts, noise, paddle.to_tensor(timesteps)

    def evaluate():
        """Return the unmerged losses on held-out crops, always with the same noise."""
        ppdiffusers_tome.remove_tome(unet)
        rng = np.random.default_rng(0)
        batches = [make_batch(rng, [crop], [timestep], held_out=True)
                   for timestep in HELD_OUT_TIMESTEPS for crop in range(num_held_out)]  # fmt: skip
        with paddle.no_grad():
            return [float(compute_loss(unet, scheduler, *batch)) for batch in batches]

    parts = {"whole": 0.0, "merged, then whole": args.merged_part, "merged": 1.0}
    trainings = {name: Training(find_linears(unet), part, args) for name, part in parts.items()}
    before, measured = evaluate(), {"whole": [], "merged": []}
    evaluated = {max(2, round(args.steps * number / args.evaluations)) for number in range(1, args.evaluations + 1)}
    args.output.mkdir(parents=True, exist_ok=True)
    for step in range(args.steps):
        rng = np.random.default_rng([args.seed, step])
        crops, timesteps = (rng.integers(0, end, args.batch) for end in (num_train, 1000))
        batch = make_batch(rng, crops, timesteps, held_out=False)
        for training in trainings.values():  # in turns, so that a slow phase of the machine affects all
            training.activate()
            kind = "merged" if step < training.merged_part * args.steps else "whole"
            ppdiffusers_tome.remove_tome(unet)
            if kind == "merged":
                ppdiffusers_tome.apply_tome(unet, args.config)
            meter, processor_start = Meter(), time.process_time()
            compute_loss(unet, scheduler, *batch).backward()
            training.optimizer.step()
            training.optimizer.clear_grad()
            if step > 0:  # the first step is slower
                processor_seconds = time.process_time() - processor_start
                measured[kind].append((meter.seconds(), processor_seconds, meter.peak_bytes() or 0))
            if step + 1 in evaluated:
                training.losses[step + 1] = evaluate()
        if step + 1 in evaluated:
            write_results(args, before, trainings, measured)
    for name, training in trainings.items():
        training.save(args.output / name.replace(", ", "-").replace(" ", "-"))


def write_results(args, before, trainings, measured):
    """Write and print the measurements so far."""
    per_step = {kind: dict(zip(MEASURES, map(statistics.median, zip(*rows, strict=True)), strict=True))
               for kind, rows in measured.items()}  # fmt: skip
    for kind, medians in per_step.items():
        print(f"a step {kind}: {medians['seconds']:.2f} s, {medians['peak_bytes'] / 2**20:,.0f} MiB at the peak")
    print(f"held-out loss before: {np.mean(before):.4f}")
    for name, training in trainings.items():
        part, (step, losses) = training.merged_part, list(training.losses.items())[-1]
        mean_seconds = part * per_step["merged"]["seconds"] + (1 - part) * per_step["whole"]["seconds"]
        gain = np.mean(before) - np.mean(losses)
        fraction = gain / (np.mean(before) - np.mean(trainings["whole"].losses[step]))
        print(f"step {step}, {name}: {mean_seconds:.2f} s a step, held-out loss {np.mean(losses):.4f}, "
              f"{fraction:.1%} of the gain of whole training")  # fmt: skip
    losses = {"before": before, **{name: training.losses for name, training in trainings.items()}}
    settings = {name: str(value) for name, value in vars(args).items()}
    results = {"settings": settings, "step": per_step, "losses": losses}
    (args.output / "results.json").write_text(json.dumps(results, indent=1))


def cut_crops(image, count, rng, *, held_out):
    """Cut square crops from an image's first half, or held-out crops from its second."""
    longer = image.size.index(max(image.size))
    half = image.size[longer] // 2
    side = min(half, *image.size)
    for _ in range(count):
        ends = [half if axis == longer else length for axis, length in enumerate(image.size)]
        corner = [int(rng.integers(0, end - side + 1)) for end in ends]
        corner[longer] += half * held_out
        yield image.crop((*corner, corner[0] + side, corner[1] + side))


def encode(pipe, crops_and_prompts, size):
    """Return latents and text embeddings, which training does not change."""
    latents, texts, longest = [], [], pipe.tokenizer.model_max_length
    for crop, prompt in crops_and_prompts:
        pixels = np.asarray(crop.resize((size, size), Image.Resampling.LANCZOS), np.float32).transpose(2, 0, 1)
        mean = pipe.vae.encode(paddle.to_tensor(pixels[None] / 127.5 - 1)).latent_dist.mean
        latents.append(mean * pipe.vae.config.scaling_factor)
        tokens = pipe.tokenizer(prompt, padding="max_length", max_length=longest, truncation=True, return_tensors="pd")
        texts.append(pipe.text_encoder(tokens.input_ids)[0])
    return paddle.concat(latents), paddle.concat(texts)


def find_linears(unet):
    """Return the linear layers of all attention, by name."""
    attentions = {name: layer for name, layer in unet.named_sublayers() if isinstance(layer, Attention)}
    linears = {f"{name}.{part}": getattr(layer, part) for name, layer in attentions.items()
               for part in ("to_q", "to_k", "to_v")}  # fmt: skip
    return linears | {f"{name}.to_out.0": layer.to_out[0] for name, layer in attentions.items()}


class Training:
    """A LoRA with its optimizer, and merging in the first part of the steps."""

    def __init__(self, linears, merged_part, args):
        paddle.seed(args.seed)  # equal initial weights in all trainings
        self.linears, self.merged_part = linears, merged_part
        self.layers = {name: LoRALinearLayer(linear.in_features, linear.out_features, args.rank)
                       for name, linear in linears.items()}  # fmt: skip
        parameters = [parameter for layer in self.layers.values() for parameter in layer.parameters()]
        self.optimizer = paddle.optimizer.AdamW(args.learning_rate, parameters=parameters)
        self.losses = {}  # on held-out crops, by step

    def activate(self):
        for name, linear in self.linears.items():
            linear.set_lora_layer(self.layers[name])

    def save(self, folder):
        weights = {f"{name}.lora.{part}": weight for name, layer in self.layers.items()
                   for part, weight in layer.state_dict().items()}  # fmt: skip
        StableDiffusionPipeline.save_lora_weights(str(folder), unet_lora_layers=weights, to_diffusers=False)


def compute_loss(unet, scheduler, latents, texts, noise, timesteps):
    """Return the mean squared error of the model's prediction, of noise or velocity."""
    is_velocity = scheduler.config.prediction_type == "v_prediction"
    target = scheduler.get_velocity(latents, noise, timesteps) if is_velocity else noise
    predicted = unet(scheduler.add_noise(latents, noise, timesteps), timesteps, texts).sample
    return ((predicted - target) ** 2).mean()


def parse_arguments():
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(SMALL_MODEL), help="default: the small model of photographs")
    parser.add_argument("--images", type=Path, help="folder of images (default: four photographs of scikit-image)")
    parser.add_argument("--prompt", help="of all images (default: 'a photo of' and the file's name)")
    parser.add_argument("--config", default="balanced", help="a preset or a JSON file of settings (default: balanced)")
    parser.add_argument("--merged-part", type=float, default=0.8, help="of the second training's steps (default: 0.8)")
    parser.add_argument("--steps", type=int, default=60, help="of each training (default: 60)")
    parser.add_argument("--batch", type=int, default=1, help="default: 1")
    parser.add_argument("--crops", type=int, default=6, help="of each image to train on (default: 6)")
    parser.add_argument("--size", type=int, help="of a crop in pixels (default: the model's)")
    parser.add_argument("--rank", type=int, default=8, help="of the LoRA (default: 8)")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="default: 0.001")
    parser.add_argument("--evaluations", type=int, default=2, help="of the held-out loss (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--output", type=Path, default=Path("outputs/lora"), help="default: outputs/lora")
    args = parser.parse_args()
    if args.steps < 2 or min(args.batch, args.crops, args.rank, args.evaluations) < 1:
        parser.error("--steps must be 2 or more; --batch, --crops, --rank and --evaluations 1 or more")
    if not 0 <= args.merged_part <= 1 or (args.size or 8) < 8 or (args.size or 8) % 8:
        parser.error("--merged-part must be from 0 to 1, and --size a multiple of 8")
    return args


def read_photographs(folder):
    """Return the images of a folder with their names; without one, photographs of scikit-image."""
    if folder is None:
        return [(name, Image.fromarray(getattr(data, name)()).convert("RGB")) for name in PHOTOGRAPHS]
    if not folder.is_dir():
        raise SystemExit(f"--images {folder} is no folder")
    files = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in Image.registered_extensions()]
    if not files:
        raise SystemExit(f"--images {folder} holds no image")
    return [(path.stem, read_image(path)) for path in files]


if __name__ == "__main__":
    given = parse_arguments()
    images = read_photographs(given.images)

    import paddle  # these take seconds, so arguments and images are checked before
    from ppdiffusers import DDPMScheduler, StableDiffusionPipeline
    from ppdiffusers.models.attention_processor import Attention
    from ppdiffusers.models.lora import LoRALinearLayer

    train(given, images)

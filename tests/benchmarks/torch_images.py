"""Generate the images of ``quality.py`` in PyTorch, on a GPU or a CPU.

    python tests/benchmarks/torch_images.py MODEL_FOLDER TEXTS.npz --scheduler ddim --output FOLDER

It needs torch, diffusers and safetensors, and no Paddle. It writes ``FOLDER/<scheduler>/<setting>/<seed>.npy``, uint8
``[33, height, width, 3]``, and resumes. ``quality.py texts`` makes ``TEXTS.npz``: the embedded prompts ``[34, tokens,
channels]``, that of no prompt last, and the calls that each cache over steps skips. Each image has the noise of its
seed in every setting.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))
from torch_merging import BALANCED, QUALITY, TOME, UNMERGED, Setting, apply_setting

GUIDANCE, STEPS = 7.5, 20


def list_settings(skipped: dict[str, list[int]]) -> list[tuple[str, Setting, int]]:
    """List names, settings and steps, the unmerged model first."""
    settings = [("unmerged", UNMERGED, STEPS)]
    settings += [(each.name, each, STEPS) for each in (TOME, QUALITY, BALANCED)]
    settings += [(name, Setting(name, skipped=frozenset(calls)), STEPS) for name, calls in skipped.items()]
    return settings + [(f"{steps} steps", UNMERGED, steps) for steps in (18, 16, 12, 10, 8, 5)]


def load_model(folder: Path, name: str, make: Callable[..., Any]) -> Any:
    """Load a model of ppdiffusers; its linear layers are transposed."""
    config = {
        key: value for key, value in json.loads((folder / name / "config.json").read_text()).items()
        if key in make.__init__.__wrapped__.__code__.co_varnames
    }  # fmt: skip
    model = make(**config).eval()
    weights = load_file(folder / name / "diffusion_paddle_model.safetensors")
    linear = {f"{path}.weight" for path, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
    missing = model.load_state_dict(
        {key: value.T.contiguous() if key in linear else value for key, value in weights.items()}, strict=True
    )
    assert not missing.missing_keys
    return model


@torch.no_grad()
def generate(
    unet: Any, vae: Any, scheduler: Any, texts: torch.Tensor, setting: Setting, steps: int, seed: int, labels: list[int]
) -> np.ndarray:  # fmt: skip
    """Generate uint8 images ``[labels, height, width, 3]`` of one noise in one batch."""
    device, side = texts.device, unet.config.sample_size
    noise = np.random.default_rng(seed).standard_normal((1, 4, side, side), np.float32)
    latents = torch.from_numpy(noise).to(device).expand(len(labels), -1, -1, -1)
    context = torch.cat([texts[-1:].expand(len(labels), -1, -1), texts[labels]])
    scheduler.set_timesteps(steps, device=device)
    with apply_setting(unet, setting) as patch:
        patch.begin_image(scheduler.timesteps.tolist())
        for timestep in scheduler.timesteps:
            predicted = unet(torch.cat([latents, latents]), timestep, context).sample
            without, guided = predicted.chunk(2)
            latents = scheduler.step(without + GUIDANCE * (guided - without), timestep, latents).prev_sample
    images = vae.decode(latents / vae.config.scaling_factor).sample
    images = (images / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1)
    return (images.float().cpu().numpy() * 255).round().astype("uint8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--scheduler", choices=["ddim", "pndm"], default="ddim")
    parser.add_argument("--seeds", type=int, nargs=2, default=[0, 12], metavar=("FIRST", "END"), help="(0 12)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="settings; default all")
    parser.add_argument("--batch", type=int, default=33, metavar="N", help="images that are generated at once (33)")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    for optional in ("transformers", "peft"):  # which diffusers imports where it can, and nothing here needs
        sys.modules[optional] = None  # type: ignore[assignment]
    import diffusers

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    unet = load_model(args.model, "unet", diffusers.UNet2DConditionModel).to(device, memory_format=torch.channels_last)
    vae = load_model(args.model, "vae", diffusers.AutoencoderKL).to(device)
    found = np.load(args.texts)
    texts, skipped = torch.from_numpy(found["texts"]).to(device), json.loads(str(found["skipped"]))
    classes = list(range(len(texts) - 1))
    config = json.loads((args.model / "scheduler/scheduler_config.json").read_text())
    kind = {"ddim": diffusers.DDIMScheduler, "pndm": diffusers.PNDMScheduler}[args.scheduler]
    # Seed by seed, so that a run that was stopped has as many images of each setting.
    for seed in range(*args.seeds):
        for label, setting, steps in list_settings(skipped[args.scheduler]):
            path = args.output / args.scheduler / label / f"{seed}.npy"
            if path.exists() or (args.only and label not in args.only):
                continue
            start = time.perf_counter()
            images = np.concatenate([
                generate(unet, vae, kind.from_config(config), texts, setting, steps, seed, classes[i : i + args.batch])
                for i in range(0, len(classes), args.batch)
            ])  # fmt: skip
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path.with_suffix(".part.npy"), images)
            path.with_suffix(".part.npy").rename(path)
            print(f"{args.scheduler}, {label}, seed {seed}: {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()

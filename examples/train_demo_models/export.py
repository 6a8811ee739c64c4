"""Convert the trained PyTorch models into the package's folders: ppdiffusers' format, float16.

    python examples/train_demo_models/export.py --text runs/text --vae runs/vae --unet runs/unet \
        --controlnet runs/controlnet --dit runs/dit --output ppdiffusers_tome/tools/demo_model

It runs under Paddle and writes ``OUTPUT/model`` (a StableDiffusionPipeline), ``OUTPUT/controlnet``, ``OUTPUT/dit`` (a
DiTPipeline) and into each a ``SHA256SUMS`` for ``sha256sum -c``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import paddle
from ppdiffusers import (
    AutoencoderKL,
    ControlNetModel,
    DDIMScheduler,
    DiTPipeline,
    StableDiffusionPipeline,
    Transformer2DModel,
    UNet2DConditionModel,
)
from ppdiffusers.transformers import CLIPTextModel, CLIPTokenizer

from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS

PATH_KEYS = {"_name_or_path", "special_tokens_map_file"}


def load(model_class: Any, folder: Path) -> paddle.nn.Layer:
    return model_class.from_pretrained(str(folder), from_diffusers=True)


def finish_folder(folder: Path) -> None:
    """Remove this machine's paths from the configs, and write the checksums."""
    for config in folder.rglob("*.json"):
        values = json.loads(config.read_text())
        if isinstance(values, dict) and values.keys() & PATH_KEYS:
            portable = {name: value for name, value in values.items() if name not in PATH_KEYS}
            config.write_text(json.dumps(portable, indent=2, ensure_ascii=False) + "\n")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}" for path in files]
    (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")


def export_model(text: Path, vae: Path, unet: Path, folder: Path) -> None:
    pipe = StableDiffusionPipeline(
        vae=load(AutoencoderKL, vae),
        text_encoder=load(CLIPTextModel, text / "text_encoder"),
        tokenizer=CLIPTokenizer.from_pretrained(str(text / "tokenizer")),
        unet=load(UNet2DConditionModel, unet),
        scheduler=DDIMScheduler.from_pretrained(str(unet / "scheduler")),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.to(paddle.float16)
    pipe.save_pretrained(str(folder), safe_serialization=True, to_diffusers=False)
    # Weights are stored in float16 and used in float32. Without this line the text encoder would compute in float16,
    # which fails on a CPU.
    config = folder / "text_encoder" / "config.json"
    config.write_text(config.read_text().replace('"dtype": "float16"', '"dtype": "float32"'))
    finish_folder(folder)


def export_controlnet(trained: Path, folder: Path) -> None:
    controlnet = load(ControlNetModel, trained).to(dtype=paddle.float16)
    controlnet.save_pretrained(str(folder), safe_serialization=True, to_diffusers=False)
    finish_folder(folder)


def export_dit(trained: Path, vae: Path, folder: Path) -> None:
    pipe = DiTPipeline(
        transformer=load(Transformer2DModel, trained),
        vae=load(AutoencoderKL, vae),
        scheduler=DDIMScheduler.from_pretrained(str(trained / "scheduler")),
    )
    pipe.to(paddle.float16)
    pipe.save_pretrained(str(folder), safe_serialization=True, to_diffusers=False)
    index = folder / "model_index.json"  # a DiTPipeline reads its labels from here, but does not save them
    labels = {str(number): subject.name for number, subject in enumerate(SUBJECTS)}
    index.write_text(json.dumps(json.loads(index.read_text()) | {"id2label": labels}, indent=2) + "\n")
    shared, weights = folder.with_name("model") / "vae", "diffusion_paddle_model.safetensors"
    if (shared / weights).is_file() and (shared / weights).read_bytes() == (folder / "vae" / weights).read_bytes():
        (folder / "vae" / weights).unlink()  # the package stores these weights once, in ``model``
    finish_folder(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("vae", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("text", "unet", "controlnet", "dit"):
        parser.add_argument(f"--{name}", type=Path)
    args = parser.parse_args()
    if args.unet:
        export_model(args.text, args.vae, args.unet, args.output / "model")
    if args.controlnet:
        export_controlnet(args.controlnet, args.output / "controlnet")
    if args.dit:
        export_dit(args.dit, args.vae, args.output / "dit")


if __name__ == "__main__":
    main()

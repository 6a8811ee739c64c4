"""Turn what PyTorch trained into the model folders that the package carries: ppdiffusers' format, float16.

    python -m ppdiffusers_tome.tools.training.export --text runs/text --vae runs/vae --unet runs/unet \
        --controlnet runs/controlnet --output ppdiffusers_tome/tools/bundled

Runs under Paddle. Writes ``OUTPUT/model`` (a StableDiffusionPipeline), ``OUTPUT/controlnet`` and, into each, a
``SHA256SUMS`` that ``sha256sum -c`` understands.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import paddle
from ppdiffusers import AutoencoderKL, ControlNetModel, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from ppdiffusers.transformers import CLIPTextModel, CLIPTokenizer


def load(model_class: Any, folder: Path) -> paddle.nn.Layer:
    return model_class.from_pretrained(str(folder), from_diffusers=True)


def finish(folder: Path) -> None:
    """Drop the paths that saving writes down of where things came from, and sum up every file."""
    for config in folder.rglob("*.json"):
        held = json.loads(config.read_text())
        if isinstance(held, dict) and {"_name_or_path", "special_tokens_map_file"} & set(held):
            kept = {k: v for k, v in held.items() if k not in ("_name_or_path", "special_tokens_map_file")}
            config.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}" for path in files]
    (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("text", "vae", "unet", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--controlnet", type=Path)
    args = parser.parse_args()
    pipe = StableDiffusionPipeline(
        vae=load(AutoencoderKL, args.vae),
        text_encoder=load(CLIPTextModel, args.text / "text_encoder"),
        tokenizer=CLIPTokenizer.from_pretrained(str(args.text / "tokenizer")),
        unet=load(UNet2DConditionModel, args.unet),
        scheduler=DDIMScheduler.from_pretrained(str(args.unet / "scheduler")),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.to(paddle.float16)
    pipe.save_pretrained(str(args.output / "model"), safe_serialization=True, to_diffusers=False)
    # Weights are kept in float16 and used in float32, which every CPU can; without this line the text encoder
    # would be float16 on a CPU too, and fail.
    config = args.output / "model" / "text_encoder" / "config.json"
    config.write_text(config.read_text().replace('"dtype": "float16"', '"dtype": "float32"'))
    finish(args.output / "model")
    if args.controlnet:
        controlnet = load(ControlNetModel, args.controlnet).to(dtype=paddle.float16)
        controlnet.save_pretrained(str(args.output / "controlnet"), safe_serialization=True, to_diffusers=False)
        finish(args.output / "controlnet")


if __name__ == "__main__":
    main()

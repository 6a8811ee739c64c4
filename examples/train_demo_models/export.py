"""Convert the trained PyTorch models into folders of ppdiffusers' format, float16.

    python examples/train_demo_models/export.py --text runs/text --vae runs/vae --unet runs/unet \
        --controlnet runs/controlnet --dit runs/dit --output examples/models

It runs under Paddle and writes ``OUTPUT/photographs`` (a StableDiffusionPipeline), ``OUTPUT/controlnet``,
``OUTPUT/dit`` (a DiTPipeline) and into each a ``SHA256SUMS`` for ``sha256sum -c``. ``--emoji runs/emoji`` writes
``OUTPUT/emoji`` (a StableDiffusionPipeline) and, where a DiT was trained, ``OUTPUT/emoji-dit`` (a DiTPipeline). A
transformer's autoencoder is a link to the UNet's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from photographs import SUBJECTS
from ppdiffusers import (
    AutoencoderKL,
    ControlNetModel,
    DDIMScheduler,
    DiTPipeline,
    PNDMScheduler,
    StableDiffusionPipeline,
    Transformer2DModel,
    UNet2DConditionModel,
)
from ppdiffusers.transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer
from tokenizer_files import END, START, write_tokenizer_files

LOG_VARIANCE = -20.0  # a standard deviation of 0.00005
PATH_KEYS = {"_name_or_path", "special_tokens_map_file"}


def load(model_class: Any, folder: Path) -> paddle.nn.Layer:
    return model_class.from_pretrained(str(folder), from_diffusers=True)


def load_vae(folder: Path) -> AutoencoderKL:
    """Load an autoencoder, and let its encoder give means alone.

    Training leaves the variances as they began, so img2img would draw latents that are mostly noise.
    """
    vae = load(AutoencoderKL, folder)
    channels = vae.config.latent_channels
    with paddle.no_grad():
        vae.quant_conv.weight[channels:] = 0.0
        vae.quant_conv.bias[channels:] = LOG_VARIANCE
    return vae


def finish_folder(folder: Path) -> None:
    """Remove this machine's paths from the configs, and write the checksums."""
    for config in folder.rglob("*.json"):
        values = json.loads(config.read_text())
        if isinstance(values, dict) and values.keys() & PATH_KEYS:
            portable = {name: value for name, value in values.items() if name not in PATH_KEYS}
            config.write_text(json.dumps(portable, indent=2, ensure_ascii=False) + "\n")
    # Patterns follow the link of a shared autoencoder.
    paths = (path for pattern in ("*", "*/*") for path in folder.glob(pattern))
    files = sorted(path for path in paths if path.is_file() and path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}" for path in files]
    (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")


def export_model(text: Path, vae: Path, unet: Path, folder: Path) -> None:
    pipe = StableDiffusionPipeline(
        vae=load_vae(vae),
        text_encoder=load(CLIPTextModel, text / "text_encoder"),
        tokenizer=CLIPTokenizer.from_pretrained(str(text / "tokenizer")),
        unet=load(UNet2DConditionModel, unet),
        scheduler=DDIMScheduler.from_pretrained(str(unet / "scheduler")),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    save_text_to_image(pipe, folder)


def save_text_to_image(pipe: StableDiffusionPipeline, folder: Path) -> None:
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
        vae=load_vae(vae),
        scheduler=DDIMScheduler.from_pretrained(str(trained / "scheduler")),
    )
    save_classes(pipe, [subject.name for subject in SUBJECTS], folder)
    share_vae(folder, folder.with_name("photographs"))
    finish_folder(folder)


def share_vae(folder: Path, other: Path) -> None:
    """Replace the autoencoder by a link to an equal one of another model."""
    weights = "vae/diffusion_paddle_model.safetensors"
    if (other / weights).is_file() and (other / weights).read_bytes() == (folder / weights).read_bytes():
        shutil.rmtree(folder / "vae")
        (folder / "vae").symlink_to(Path("..") / other.name / "vae")


def save_classes(pipe: DiTPipeline, names: list[str], folder: Path) -> None:
    pipe.to(paddle.float16)
    pipe.save_pretrained(str(folder), safe_serialization=True, to_diffusers=False)
    index = folder / "model_index.json"  # a DiTPipeline reads its labels from here, but does not save them
    labels = {"id2label": {str(number): name for number, name in enumerate(names)}}
    index.write_text(json.dumps(json.loads(index.read_text()) | labels, indent=2) + "\n")


def export_emoji(trained: Path, folder: Path) -> None:
    pipe = StableDiffusionPipeline(
        vae=load_vae(trained / "vae"),
        **make_emoji_text(trained / "text.npz", folder / "tokenizer"),
        unet=load(UNet2DConditionModel, trained / "unet"),
        scheduler=PNDMScheduler.from_pretrained(str(trained / "unet-scheduler"), skip_prk_steps=True),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    save_text_to_image(pipe, folder)


def export_emoji_dit(trained: Path, folder: Path) -> None:
    from emoji import CLASSES

    pipe = DiTPipeline(
        transformer=load(Transformer2DModel, trained / "dit"),
        vae=load_vae(trained / "vae"),
        scheduler=DDIMScheduler.from_pretrained(str(trained / "dit-scheduler")),
    )
    save_classes(pipe, list(CLASSES), folder)
    share_vae(folder, folder.with_name("emoji"))
    finish_folder(folder)


def make_emoji_text(file: Path, tokenizer_folder: Path) -> dict[str, Any]:
    """Make the tokenizer and the text encoder, embeddings alone, from what ``emoji_text.Text`` learned."""
    trained = np.load(file)
    length, width = trained["position.weight"].shape
    files = write_tokenizer_files(tokenizer_folder, trained["words"][2:].tolist())
    tokenizer = CLIPTokenizer(*files, model_max_length=length, pad_token=END)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    # A word that was not trained is as good as padding.
    row_by_token = {START: 0} | {word + "</w>": row for row, word in enumerate(trained["words"][2:], 2)}
    start, end = tokenizer.convert_tokens_to_ids([START, END])
    encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokens), hidden_size=width, intermediate_size=width, projection_dim=width,
            num_hidden_layers=0, num_attention_heads=1, max_position_embeddings=length, bos_token_id=start,
            eos_token_id=end, pad_token_id=end,
        )
    )
    rows = [row_by_token.get(token, 1) for token in tokens]
    encoder.set_state_dict({
        "text_model.embeddings.token_embedding.weight": trained["token.weight"][rows],
        "text_model.embeddings.position_embedding.weight": trained["position.weight"],
        "text_model.final_layer_norm.weight": trained["norm.weight"],
        "text_model.final_layer_norm.bias": trained["norm.bias"],
    })  # fmt: skip
    return {"tokenizer": tokenizer, "text_encoder": encoder}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    for name in ("text", "vae", "unet", "controlnet", "dit", "emoji"):
        parser.add_argument(f"--{name}", type=Path)
    args = parser.parse_args()
    if args.unet:
        export_model(args.text, args.vae, args.unet, args.output / "photographs")
    if args.controlnet:
        export_controlnet(args.controlnet, args.output / "controlnet")
    if args.dit:
        export_dit(args.dit, args.vae, args.output / "dit")
    if args.emoji:
        export_emoji(args.emoji, args.output / "emoji")
        if (args.emoji / "dit").exists():
            export_emoji_dit(args.emoji, args.output / "emoji-dit")


if __name__ == "__main__":
    main()

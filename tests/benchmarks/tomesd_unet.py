"""Add the rows of tomesd to the results of ``results.py``.

    venv-with-torch/bin/python tests/benchmarks/tomesd_unet.py outputs/results.json

The script needs torch, diffusers 0.29 and tomesd, and neither Paddle nor this package. To keep freed memory as
``ppdiffusers-tome`` does, set MALLOC_MMAP_MAX_=0 and MALLOC_TRIM_THRESHOLD_=8589934592.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import diffusers
import tomesd
import torch

SD15 = {
    "sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8, "block_out_channels": (320, 640, 1280, 1280)
}  # fmt: skip
RATIO, TEXT_TOKENS = 0.5, 77


def main() -> None:
    path = Path(sys.argv[1])
    found = json.loads(path.read_text())
    unet = diffusers.UNet2DConditionModel(**SD15).eval()
    for row in [row for row in found["results"] if row["variant"] == "none"]:
        seconds = measure(unet, row["case"]["size"], row["case"]["batch"], row["rounds"])
        for variant, values in seconds.items():
            pairs = zip(seconds["torch"], values, strict=True)
            found["results"].append({
                "case": row["case"], "variant": variant, "rounds": row["rounds"], "seconds": spread(values),
                "speedup": spread([unmerged / value for unmerged, value in pairs]),
            })  # fmt: skip
    versions = {name: version(name) for name in ("torch", "diffusers", "tomesd")}
    found["torch_machine"] = {"threads": torch.get_num_threads(), **versions}
    path.write_text(json.dumps(found, indent=2) + "\n")


@torch.no_grad()
def measure(unet: torch.nn.Module, size: int, batch: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of calls without and with tomesd, which take turns."""
    generator, side = torch.Generator().manual_seed(0), size // 8
    latent = torch.randn(batch, 4, side, side, generator=generator)
    text = torch.randn(batch, TEXT_TOKENS, SD15["cross_attention_dim"], generator=generator)

    def time_call(variant: str) -> float:
        tomesd.remove_patch(unet)
        if variant == "tomesd":
            tomesd.apply_patch(unet, ratio=RATIO)
        start = time.perf_counter()
        unet(latent, torch.tensor(999), text)
        return time.perf_counter() - start

    seconds: dict[str, list[float]] = {"torch": [], "tomesd": []}
    time_call("torch")  # which sets things up
    for number in range(rounds):
        for variant in list(seconds)[:: -1 if number % 2 else 1]:
            seconds[variant].append(time_call(variant))
    return seconds


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


if __name__ == "__main__":
    main()

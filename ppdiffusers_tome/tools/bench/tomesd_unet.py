"""Calls of a UNet under PyTorch, as it is and with tomesd.

Run by ``bench results`` with another interpreter, so it needs neither Paddle nor this package.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version

import diffusers
import tomesd
import torch


def main() -> None:
    given = json.loads(sys.argv[1])
    unet = diffusers.UNet2DConditionModel(**given["config"]).eval()
    generator, side = torch.Generator().manual_seed(0), given["size"] // 8
    latent = torch.randn(given["batch"], unet.config.in_channels, side, side, generator=generator)
    text = torch.randn(given["batch"], given["text_tokens"], unet.config.cross_attention_dim, generator=generator)

    def seconds_of_a_call() -> float:
        begun = time.perf_counter()
        unet(latent, torch.tensor(999), text)
        return time.perf_counter() - begun

    def unmerged() -> float:
        tomesd.remove_patch(unet)
        return seconds_of_a_call()

    def merged() -> float:
        tomesd.apply_patch(unet, ratio=given["ratio"])
        return seconds_of_a_call()

    turns = [(given["unmerged"], unmerged), (given["merged"], merged)]
    rounds: list[dict[str, float]] = []
    with torch.no_grad():
        unmerged()  # which sets things up
        for number in range(given["repeats"]):
            rounds.append({name: turn() for name, turn in turns[:: -1 if number % 2 else 1]})
    on = {"threads": torch.get_num_threads(), **{name: version(name) for name in ("torch", "diffusers", "tomesd")}}
    print(json.dumps({"rounds": rounds, "on": on}))


if __name__ == "__main__":
    main()

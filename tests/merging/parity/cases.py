"""Cases for the reference and ours: configs, weights by name, inputs and settings.

Weights are drawn from a generator seeded by each parameter's name, so no weights need to be stored and both
frameworks get the same ones.
"""

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

CROSS_DIM, TEXT_TOKENS = 12, 5

BOTH = dict(
    in_channels=4, block_out_channels=(8, 16, 16, 24), layers_per_block=1, cross_attention_dim=CROSS_DIM,
    down_block_types=("CrossAttnDownBlock2D",) * 4, attention_head_dim=2, norm_num_groups=4,
)  # fmt: skip
UNET = dict(BOTH, sample_size=16, out_channels=4, up_block_types=("CrossAttnUpBlock2D",) * 4)
CONTROLNET = dict(BOTH, conditioning_embedding_out_channels=(8, 16))


@dataclass(frozen=True)
class Case:
    """One call: latent ``[batch, 4, height, width]`` and the settings of ``apply_patch``."""

    height: int = 16
    width: int = 16
    batch: int = 2
    control: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        settings = "-".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{self.batch}x{self.height}x{self.width}{'-control' if self.control else ''}-{settings or 'defaults'}"


def _cases() -> list[Case]:
    only = dict(merge_attn=False)
    every = dict(merge_crossattn=True, merge_mlp=True)
    cases = [Case(settings=dict(ratio=ratio)) for ratio in (0.1, 0.25, 0.5, 0.6, 0.7)]
    cases += [Case(settings=dict(ratio=0.5, max_downsample=level)) for level in (1, 2, 4, 8)]
    flags = (dict(only, merge_crossattn=True), dict(only, merge_mlp=True), every)
    cases += [Case(settings=dict(max_downsample=8, **merged)) for merged in flags]
    strides = ((2, 2), (4, 4), (4, 2), (2, 4), (3, 3))
    cases += [Case(settings=dict(ratio=0.6, max_downsample=2, sx=sx, sy=sy)) for sx, sy in strides]
    sizes = ((16, 32), (32, 16), (17, 17), (15, 22), (24, 20), (19, 16), (33, 24))
    cases += [Case(h, w, settings=dict(ratio=0.5, max_downsample=8, **every)) for h, w in sizes]
    # tomesd fails where a level is smaller than one cell; the finest level never is here.
    cases += [Case(h, w, settings=dict(ratio=0.6, sx=3, sy=3)) for h, w in (*sizes, (8, 32), (32, 8))]
    cases += [Case(16, 24, batch, settings=dict(ratio=0.5, max_downsample=4)) for batch in (1, 2, 3)]
    cases += [Case(17, 24, 3, settings=dict(ratio=0.3, sx=4, sy=2, **every))]
    levels = ((0.5, 1), (0.6, 2), (0.3, 8))
    cases += [Case(control=True, settings=dict(ratio=ratio, max_downsample=level)) for ratio, level in levels]
    cases += [Case(16, 24, 3, control=True, settings=dict(ratio=0.5, max_downsample=4, **every))]
    return list({case.name: case for case in cases}.values())


CASES = _cases()


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return a float32 parameter in PyTorch's layout: linear weights are ``[out, in]``."""
    draw = np.random.default_rng(zlib.crc32(name.encode()))
    values = draw.standard_normal(shape).astype(np.float32)
    if len(shape) == 1:
        return 1.0 + 0.1 * values if "norm" in name and name.endswith("weight") else 0.1 * values
    return values / np.float32(np.sqrt(np.prod(shape[1:])))


def inputs(case: Case) -> dict[str, np.ndarray]:
    """``sample``, ``timestep``, ``text`` and the control image, all float32."""
    draw = np.random.default_rng(case.height * 1000 + case.width + case.batch)
    # Neighbours resemble each other, as in a latent, so that tokens do merge with their like.
    coarse = draw.standard_normal((case.batch, 4, case.height // 2 + 1, case.width // 2 + 1))
    sample = coarse.repeat(2, axis=2).repeat(2, axis=3)[:, :, : case.height, : case.width]
    sample = sample + 0.3 * draw.standard_normal(sample.shape)
    return {
        "sample": sample.astype(np.float32),
        "timestep": np.asarray(float(draw.integers(1, 1000)), np.float32),
        "text": draw.standard_normal((case.batch, TEXT_TOKENS, CROSS_DIM)).astype(np.float32),
        "control": draw.random((case.batch, 3, case.height * 2, case.width * 2)).astype(np.float32),
    }

"""A merging model as a static program of Paddle: saved, loaded and run, it gives what it gives in dynamic mode."""

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.static import InputSpec

import tiny
from ppdiffusers_tome import ToMeValueError, apply_tome, remove_tome
from ppdiffusers_tome.patching.override import walk_overrides
from ppdiffusers_tome.patching.overrides.block import GridOverride
from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall

# Settings that decide how matching is computed; between them every way there is.
SETTINGS: list[dict[str, Any]] = [
    {}, dict(use_rand=False, merge_crossattn=True), dict(tile=4, reuse_steps=4, merge_mlp=True), dict(method="todo"),
    dict(method="keys"),
]  # fmt: skip


def make_specs() -> list[InputSpec]:
    """Of latents, timestep and text; any batch and length of text."""
    return [InputSpec(shape) for shape in ([None, 4, 16, 16], [1], [None, None, tiny.CROSS_DIM])]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_saved_program_takes_any_batch_and_follows_the_timestep(settings: dict[str, Any], tmp_path: Path) -> None:
    plain, unet = tiny.small_unet(), apply_tome(tiny.small_unet(), 0.5, **settings)
    paddle.jit.save(unet, str(tmp_path / "unet"), input_spec=make_specs())
    program = paddle.jit.load(str(tmp_path / "unet"))
    for rows, timestep in ((1, 500), (3, 3), (2, 981.5)):
        given = tiny.latent(rows), paddle.to_tensor([timestep], "float32"), tiny.text(rows)
        with paddle.no_grad():
            found, expected, unmerged = (model(*given) for model in (program, unet, plain))
        assert np.abs(found.numpy() - expected.sample.numpy()).max() <= 1e-4
        assert np.abs(found.numpy() - unmerged.sample.numpy()).max() > 1e-3


def test_an_open_size_is_refused_while_it_is_recorded() -> None:
    overrides = walk_overrides(apply_tome(tiny.small_unet(), 0.5))
    grid = next(override for override in overrides if isinstance(override, GridOverride))
    paddle.enable_static()
    try:
        latent = paddle.static.data("latent", [2, 8, -1, 16])
        with pytest.raises(ToMeValueError, match=r"a dynamic height or width .*; give both in the InputSpec before"):
            grid.run(DenoiserCall(grid.state, grid.layer), type(grid.layer).forward, latent)
    finally:
        paddle.disable_static()


@paddle.no_grad()
def test_a_model_that_the_user_traced_merges_and_is_without_tome_after_removal() -> None:
    """Paddle 3 traces with another function in place of ``forward``, and restores ours on the layer itself."""
    unet = apply_tome(tiny.small_unet(), 0.5)
    expected, traced = tiny.run_unet(unet), paddle.jit.to_static(tiny.Positional(unet), make_specs(), full_graph=True)
    for _ in range(2):
        output = traced(tiny.latent(), paddle.to_tensor([500], "float32"), tiny.text())
        assert np.abs(output.numpy() - expected).max() <= 1e-5
    remove_tome(unet)
    for layer in unet.sublayers(include_self=True):
        assert "_ppdiffusers_tome" not in vars(layer)
        assert vars(layer).get("forward") is None or not paddle.__version__.startswith("3")
    plain = tiny.small_unet().sublayers(include_self=True)
    assert list(map(type, unet.sublayers(include_self=True))) == list(map(type, plain))

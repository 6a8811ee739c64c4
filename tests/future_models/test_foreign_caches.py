"""Caches over steps that replace the ``forward`` of classes, as PaddleMIX' examples for FLUX do, on stand-ins.

Each is a few lines of our own that skip what theirs skip: the whole stack (TeaCache), all behind the first block
(first-block caches, CG-Taylor), or the layers inside of each block (TaylorSeer).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from future_models import stand_ins
from future_models.stand_ins import FIRST, Model, apart, join_text
from future_models.test_stand_ins import same
from ppdiffusers_tome import apply_tome, remove_tome
from ppdiffusers_tome.patching.override import list_overrides
from zoo.specimen import Inputs

FLUX = stand_ins.FAMILIES["flux"]
TIMESTEPS = (900, 700, 500, 300)  # every second one is skipped


def run_blocks(model: Model, tokens: Any, text: Any, start: int, **given: Any) -> Any:
    for block in model.transformer_blocks[start:]:
        text, tokens = block(hidden_states=tokens, encoder_hidden_states=text, **given)
    both = join_text(tokens, text, FIRST)
    for block in model.single_transformer_blocks:
        both = block(hidden_states=both, **given)
    return apart(both, text.shape[1], FIRST)


def forward_of(first: int) -> Callable[..., Any]:
    """A model's ``forward`` that always runs the ``first`` blocks and then reuses the last residual of the others."""

    def forward(
        self: Model, hidden_states: Any, encoder_hidden_states: Any, timestep: Any, img_ids: Any, txt_ids: Any,
        guidance: Any = None, joint_attention_kwargs: Any = None,
    ) -> Any:  # fmt: skip
        tokens, text = self.x_embedder(hidden_states), self.context_embedder(encoder_hidden_states)
        given = dict(
            temb=self.time_text_embed(timestep * 1000, guidance * 1000),
            image_rotary_emb=self.rotary(paddle.concat([txt_ids, img_ids])),
        )
        for block in self.transformer_blocks[:first]:
            text, tokens = block(hidden_states=tokens, encoder_hidden_states=text, **given)
        self.count = getattr(self, "count", -1) + 1
        if self.count % 2 == 0:
            output = run_blocks(self, tokens, text, first, **given)
            self.residual = output[0] - tokens, output[1] - text
        else:
            output = tokens + self.residual[0], text + self.residual[1]
        if joint_attention_kwargs is not None:  # as theirs, whose features are in the arguments of the call
            joint_attention_kwargs["cache_dic"] = {"cache": {0: {"hidden": output[0]}}}
        return output

    return forward


def forward_of_block(
    self: Any, hidden_states: Any, encoder_hidden_states: Any, temb: Any, image_rotary_emb: Any
) -> Any:  # fmt: skip
    """A block's ``forward`` whose layers run in every second call."""
    self.count = getattr(self, "count", -1) + 1
    if self.count % 2 == 0:
        tokens, text = self.run(hidden_states, encoder_hidden_states, temb, image_rotary_emb=image_rotary_emb)
        self.residual = text - encoder_hidden_states, tokens - hidden_states
        return text, tokens
    return encoder_hidden_states + self.residual[0], hidden_states + self.residual[1]


MODEL, BLOCK = stand_ins.FluxTransformer2DModel, stand_ins.FluxTransformerBlock
CACHES: dict[str, tuple[type, Any]] = {
    "whole stack": (MODEL, forward_of(0)), "behind the first block": (MODEL, forward_of(1)),
    "inside of blocks": (BLOCK, forward_of_block),
}  # fmt: skip


def steps(model: Model, **given: Any) -> list[list[np.ndarray]]:
    return [FLUX.run(model, Inputs(timestep=timestep), **given) for timestep in TIMESTEPS]


def forget(model: Model) -> Model:
    for layer in model.sublayers(include_self=True):
        vars(layer).pop("count", None)
    return model


@pytest.mark.parametrize("tome_first", [True, False])
@pytest.mark.parametrize("name", CACHES)
def test_merging_works_beside_it(name: str, tome_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    merged = steps(apply_tome(FLUX.build(dual=2), 0.5))
    model = FLUX.build(dual=2)
    if tome_first:
        apply_tome(model, 0.5)
    cls, forward = CACHES[name]
    monkeypatch.setattr(cls, "forward", forward)
    alone = steps(FLUX.build(dual=2))
    if not tome_first:
        apply_tome(model, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cached = steps(model)
    # Computed steps are those of merging alone, the others are those of neither alone.
    assert [same(*pair) for pair in zip(cached, merged, strict=True)] == [True, False, True, False]
    assert not any(same(*pair) for pair in zip(cached, alone, strict=True))
    assert all(np.isfinite(each[0]).all() for each in cached)
    assert all(map(same, steps(forget(remove_tome(model))), alone))
    assert not [each for layer in model.sublayers(include_self=True) for each in list_overrides(layer)]


def test_matchings_are_reused_beside_tensors_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """These differ in every step, and are no conditioning."""
    monkeypatch.setattr(MODEL, "forward", forward_of(0))
    model = apply_tome(FLUX.build(), 0.5, reuse_steps=4)
    given: dict[str, Any] = {}
    pipe = tiny.Sampler(model, tiny.scheduler())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipe(lambda model, _, at: FLUX.run(model, Inputs(timestep=int(at)), joint_attention_kwargs=given), steps=7)

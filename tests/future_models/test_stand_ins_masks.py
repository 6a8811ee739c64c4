"""Masks of attention, and sizes of groups in its scores, on stand-ins for the families of a newer ppdiffusers."""

from __future__ import annotations

from typing import Any

import paddle
import pytest

import tiny
from future_models.stand_ins import FAMILIES
from future_models.test_stand_ins import case, change
from ppdiffusers_tome import NothingToMergeError, apply_tome
from zoo.specimen import Inputs


@pytest.mark.parametrize("name", [family.name for family in FAMILIES.values() if family.takes_mask])
@pytest.mark.parametrize("blocks", [{"dual": 2, "single": 0}, {"dual": 0, "single": 2}], ids=["dual", "single"])
@pytest.mark.parametrize(
    ("method", "ratio"), [("tome", 0.6), ("tofu", 0.6), ("todo", 0.75), ("pool", 0.6), ("keys", 0.6)]
)
def test_merging_equal_tokens_changes_nothing_once_their_number_counts(
    name: str, blocks: Any, method: str, ratio: float
) -> None:
    family = FAMILIES[name]
    model = family.build(**blocks)
    model.rope.share = 2
    plain = family.run(model, tiny.EqualCells())
    settings = dict(ratio=ratio, method=method)
    assert change(family.run(apply_tome(model, **settings, proportional=True), tiny.EqualCells()), plain) <= 1e-6
    assert change(family.run(apply_tome(model, **settings, proportional=False), tiny.EqualCells()), plain) >= 1e-3


@pytest.mark.parametrize("family", [case(family) for family in FAMILIES.values() if not family.takes_mask])
def test_attention_without_a_mask_cannot_be_told_numbers(family: Any) -> None:
    with pytest.raises(NothingToMergeError, match="proportional=True has no effect here"):
        apply_tome(family.build(), 0.5, proportional=True)


@pytest.mark.parametrize("method", ["tome", "todo", "pool", "keys"])
@pytest.mark.parametrize("proportional", [False, True])
def test_hidden_tokens_of_a_text_stay_hidden(method: str, proportional: bool) -> None:
    family, inputs = FAMILIES["hunyuan_video"], Inputs()
    model = apply_tome(family.build(), 0.5, method=method, proportional=proportional)
    given = family.arguments(inputs)
    text, seen = given["encoder_hidden_states"], given["encoder_attention_mask"]
    # Of the last text, what is hidden becomes something else.
    other = paddle.where((seen == 0).unsqueeze(2), text + 3, text)

    def run_last_image(**changes: Any) -> list[Any]:
        image, made_of_text = family.run(model, inputs, **changes)
        return [image[-1], made_of_text[-1][seen[-1].numpy() == 1]]

    assert change(run_last_image(encoder_hidden_states=other), run_last_image()) == 0
    all_seen = dict(encoder_attention_mask=paddle.ones_like(seen))
    assert change(run_last_image(encoder_hidden_states=other, **all_seen), run_last_image(**all_seen)) >= 1e-3

"""What a call of the families of a newer ppdiffusers tells, and where merging steps back, on stand-ins."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle
import pytest

from newer.stand_ins import FAMILIES, NEEDS_KEYWORDS, Model, Processor, RoundTheNorms
from newer.test_stand_ins import attentions, same, with_processor
from ppdiffusers_tome import apply_tome, remove_tome
from ppdiffusers_tome.attaching.watching import watched
from ppdiffusers_tome.tools.doctor.zoo.specimen import Inputs

pytestmark = NEEDS_KEYWORDS
FLUX = FAMILIES["flux"]
ROTARY = [family.name for family in FAMILIES.values() if family.by_keyword]


@contextmanager
def warned_once(about: str) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield
    assert len([each for each in told if about in str(each.message)]) == 1, [str(each.message) for each in told]


@contextmanager
def calls_of_attention(model: Model) -> Iterator[list[Any]]:
    calls: list[Any] = []
    helpers = [each.to_q.register_forward_pre_hook(lambda *call: calls.append(call)) for each in attentions(model)]
    yield calls
    for helper in helpers:
        helper.remove()


@pytest.mark.parametrize("method", ["tome", "todo"])
@pytest.mark.parametrize("name", ROTARY)
def test_attention_without_norms_runs_unmerged(name: str, method: str) -> None:
    family = FAMILIES[name]
    model = family.build(norms=False)
    plain = family.run(model)
    apply_tome(model, 0.5, method=method)
    with warned_once("has no norms of queries and keys"), calls_of_attention(model) as calls:
        assert same(family.run(model), plain)
        assert len(calls) == len(list(attentions(model)))
        assert same(family.run(model), plain)


@pytest.mark.parametrize("method", ["tome", "todo"])
@pytest.mark.parametrize("name", ROTARY)
def test_a_processor_that_goes_round_the_norms_runs_unmerged(name: str, method: str) -> None:
    family = FAMILIES[name]
    model = with_processor(family.build(), RoundTheNorms)
    plain = family.run(model)
    apply_tome(model, 0.5, method=method)
    with warned_once("RoundTheNorms has no norms of queries and keys, or goes round them"):
        with calls_of_attention(model) as calls:
            assert same(family.run(model), plain)
            # What was computed before it was found out is computed again; from then on it is known.
            assert len(calls) == 2 * len(list(attentions(model)))
        with calls_of_attention(model) as calls:
            assert same(family.run(model), plain)
            assert len(calls) == len(list(attentions(model)))
    assert not same(family.run(with_processor(model, Processor)), plain)
    assert same(family.run(with_processor(model, RoundTheNorms)), plain)


def test_positions_that_are_no_grid_run_unmerged() -> None:
    """Such as those of two pictures side by side, or column by column."""
    model, given = FLUX.build(), FLUX.arguments(Inputs())
    rows = given["img_ids"]
    for ids in (paddle.concat([rows[:32], rows[:32]]), rows.flip(0), rows[:, [0, 2, 1]]):
        plain = FLUX.run(remove_tome(model), img_ids=ids)
        apply_tome(model, 0.5)
        with warned_once("tell of tokens that are no grid"):
            assert same(FLUX.run(model, img_ids=ids), plain)
            assert same(FLUX.run(model, img_ids=ids.clone()), plain)
        assert not same(FLUX.run(model, img_ids=rows), FLUX.run(remove_tome(model), img_ids=rows))


def test_positions_are_read_once_while_they_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given, read = apply_tome(FLUX.build(), 0.5), FLUX.arguments(Inputs()), []
    ids, numpy = given["img_ids"], paddle.Tensor.numpy

    def counting(tensor: paddle.Tensor) -> np.ndarray:
        if tensor.shape == ids.shape:
            read.append(tensor)
        return numpy(tensor)

    monkeypatch.setattr(paddle.Tensor, "numpy", counting)

    def times(**changes: Any) -> int:
        read.clear()
        FLUX.run(model, **{"img_ids": ids, "txt_ids": given["txt_ids"], **changes})
        return len(read)

    once = times()
    assert once >= 1
    assert [times(), times(), times()] == [0, 0, 0]
    assert [times(img_ids=ids.clone()), times(), times()] == [once, once, 0]
    ids.scale_(1.0)
    assert [times(), times()] == [once, 0]


def test_the_guidance_that_is_embedded_like_a_timestep_is_none() -> None:
    """It comes second; a ratio that falls with the denoising would else stay what it is at the beginning."""
    model = apply_tome(FLUX.build(), (0.7, 0.1))
    merged = []
    with watched(model) as records:
        for timestep in (900, 100):
            FLUX.run(model, Inputs(timestep=timestep))
            merged.append(records[-1].num_merged / 64)
    assert [record.timestep for record in records] == pytest.approx([900, 900, 100, 100])
    assert merged == pytest.approx([0.64, 0.16], abs=1 / 64)

"""Every specimen of the zoo keeps the contract; in those that are refused nothing merges, for a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from patching.contract import USUAL, ToMeContract, marks_of
from ppdiffusers_tome import NothingToMergeError, apply_tome
from ppdiffusers_tome.patching.adapters import list_adapters
from ppdiffusers_tome.patching.blocks import find_blocks
from zoo import Specimen, specimens
from zoo.specimen import keep_random_state


def _numbers(specimen: Specimen) -> Any:
    @paddle.no_grad()
    def run(model: tiny.Model, **given: Any) -> np.ndarray:
        with keep_random_state():  # some models draw noise of their own
            return specimen.run(model, **given).numpy()

    return staticmethod(run)


for _specimen in specimens():
    if _specimen.reason is None:
        _name = "Test" + "".join(part.title() for part in _specimen.name.split("_"))
        globals()[_name] = type(
            _name,
            (ToMeContract,),
            {
                "build": staticmethod(_specimen.build),
                "run": _numbers(_specimen),
                "name": _specimen.name,
                "pytestmark": marks_of(_specimen),
            },
        )


def test_every_adapter_is_among_the_usual() -> None:
    there = [each for each in specimens() if each.is_there]
    usual = {id(block.adapter) for each in there if each.name in USUAL for block in find_blocks(each.build())}
    # Blocks of models that the ppdiffusers which is installed lacks cannot be looked at.
    lacking = {each.model_class for each in specimens()} - {each.model_class for each in there}
    found = [each for each in list_adapters() if not lacking.issuperset(each.parent_classes)]
    assert [each.block_class for each in found if id(each) not in usual] == []


@pytest.mark.parametrize(
    "specimen", [s for s in specimens() if s.reason], ids=lambda specimen: specimen.name
)
def test_a_refused_specimen_tells_its_reason(specimen: Specimen) -> None:
    with pytest.raises(NothingToMergeError) as raised:
        apply_tome(specimen.build())
    assert str(specimen.reason) in str(raised.value)

"""Every specimen of the zoo keeps the contract; in those that are refused nothing merges, for a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from attaching.contract import ToMeContract
from ppdiffusers_tome import NothingToMergeError, apply_tome
from ppdiffusers_tome.tools.doctor.zoo import Specimen, specimens
from ppdiffusers_tome.tools.doctor.zoo.specimen import untouched_random_state


def _numbers(specimen: Specimen) -> Any:
    @paddle.no_grad()
    def run(model: tiny.Model, **given: Any) -> np.ndarray:
        with untouched_random_state():  # some models draw noise of their own
            return specimen.run(model, **given).numpy()

    return staticmethod(run)


for _specimen in specimens():
    if _specimen.reason is None:
        _name = "Test" + "".join(part.title() for part in _specimen.name.split("_"))
        globals()[_name] = type(
            _name, (ToMeContract,), {"build": staticmethod(_specimen.build), "run": _numbers(_specimen)}
        )


@pytest.mark.parametrize("specimen", specimens(), ids=lambda specimen: specimen.name)
def test_a_specimen_is_of_its_class(specimen: Specimen) -> None:
    assert specimen.model_class in {cls.__name__ for cls in type(specimen.build()).__mro__}


@pytest.mark.parametrize(
    "specimen", [s for s in specimens() if s.reason], ids=lambda specimen: specimen.name
)
def test_a_refused_specimen_tells_its_reason(specimen: Specimen) -> None:
    with pytest.raises(NothingToMergeError) as raised:
        apply_tome(specimen.build())
    assert str(specimen.reason) in str(raised.value)

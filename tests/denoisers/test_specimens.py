"""Every specimen of the zoo keeps the contract; in those that are refused nothing merges, for a reason."""

from __future__ import annotations

import pytest

from patching.contract import USUAL, contract_of
from ppdiffusers_tome import NothingToMergeError, apply_tome
from ppdiffusers_tome.patching.adapters import list_adapters
from ppdiffusers_tome.patching.blocks import find_blocks
from zoo import Specimen, specimens

for _specimen in specimens():
    if _specimen.reason is None and not _specimen.since:  # the newest are in `newer`
        _tests = contract_of(_specimen)
        globals()[_tests.__name__] = _tests


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

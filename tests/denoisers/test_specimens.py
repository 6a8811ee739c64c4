"""Every specimen of the zoo keeps the contract, or is refused for a reason, and the page of coverage says which."""

import paddle
import ppdiffusers
import pytest

from patching.contract import USUAL, contract_of
from ppdiffusers_tome import NothingToMergeError, apply_tome
from ppdiffusers_tome.patching.adapters import list_adapters
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.tools.doctor.environment import TESTED
from zoo import Specimen, specimens
from zoo.coverage import FILE, NEWEST, PAGE, coverage, format_page, read_coverage

WRITE_AGAIN = "; write it again with: PYTHONPATH=tests python -m zoo.coverage"

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


@pytest.mark.parametrize("specimen", [s for s in specimens() if s.reason], ids=lambda specimen: specimen.name)
def test_a_refused_specimen_tells_its_reason(specimen: Specimen) -> None:
    with pytest.raises(NothingToMergeError) as raised:
        apply_tome(specimen.build())
    assert str(specimen.reason) in str(raised.value)


@pytest.mark.skipif(not paddle.__version__.startswith("3"), reason="other pipelines import with Paddle 2.6")
def test_coverage_file_is_what_the_models_show() -> None:
    """A pipeline or model class that a new ppdiffusers adds fails here, by name."""
    found = {row.name: row for row in coverage()}
    assert not [row for row in found.values() if "unknown" in row.where]
    expected = {row.name: row for row in read_coverage() if not row.since or row.name in found}
    wrong = {
        name for name in found.keys() | expected.keys()
        if name not in found or name not in expected
        or (found[name].merges, found[name].where) != (expected[name].merges, expected[name].where)
    }  # fmt: skip
    assert not wrong, f"{FILE} differs in {sorted(wrong)}{WRITE_AGAIN}"
    if ppdiffusers.__version__ == TESTED[-1]:
        assert found.keys() >= {row.name for row in read_coverage() if row.since != NEWEST}


def test_page_is_the_coverage_file() -> None:
    assert PAGE.read_text(encoding="utf-8") == format_page(), f"{PAGE} differs{WRITE_AGAIN}"

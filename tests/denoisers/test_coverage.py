"""What merges in every pipeline of ppdiffusers, as the page says."""

from __future__ import annotations

import paddle
import ppdiffusers
import pytest

from ppdiffusers_tome.tools.doctor.environment import TESTED
from zoo.coverage import FILE, NEWEST, PAGE, coverage, format_page, read_coverage

WRITE_AGAIN = "; write it again with: PYTHONPATH=tests python -m zoo.coverage"


@pytest.mark.skipif(not paddle.__version__.startswith("3"), reason="other pipelines import with Paddle 2.6")
def test_coverage_file_is_what_the_models_show():
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


def test_page_is_the_coverage_file():
    assert PAGE.read_text(encoding="utf-8") == format_page(), f"{PAGE} differs{WRITE_AGAIN}"

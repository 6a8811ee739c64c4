"""The contract of models with ToMe, kept by compiled ones."""

from __future__ import annotations

from typing import Any

import pytest

from compilation.comparison import needs_openvino
from compilation.test_equality import COMPILING
from patching.contract import contract_of
from ppdiffusers_tome import compile_cpu
from zoo import Specimen, specimens

pytestmark = needs_openvino
QUICK = ("unet",)


def _contract(specimen: Specimen) -> Any:
    tests = contract_of(specimen)
    tests.build = staticmethod(lambda: compile_cpu(specimen.build()))
    tests.pytestmark = [*needs_openvino, *([] if specimen.name in QUICK else [pytest.mark.sweep])]
    return tests


for _specimen in specimens():
    if _specimen.name in COMPILING and _specimen.reason is None and _specimen.is_there:
        _tests = _contract(_specimen)
        globals()[_tests.__name__] = _tests

"""The newest families keep the contract, as all others do in `denoisers/test_specimens.py`."""

from __future__ import annotations

from newer.families import FAMILIES
from patching.contract import contract_of

for _specimen in FAMILIES.values():
    _tests = contract_of(_specimen)
    globals()[_tests.__name__] = _tests

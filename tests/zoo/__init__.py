"""A tiny real model of every class that pipelines denoise with, a ``SPECIMEN`` each.

``coverage`` reads off these models what merges in every pipeline, and tests hold each to the contract.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from functools import lru_cache

from zoo.specimen import Specimen


@lru_cache(maxsize=1)
def specimens() -> tuple[Specimen, ...]:
    """Every specimen of this folder, by name of its file."""
    names = sorted({module.name for module in pkgutil.iter_modules(__path__)} - {"specimen", "coverage"})
    return tuple(replace(importlib.import_module(f"{__name__}.{name}").SPECIMEN, name=name) for name in names)

"""A tiny real model of every class that ppdiffusers' pipelines denoise with. One file each, with a ``SPECIMEN``.

What merges where is read off these models (``ppdiffusers-tome doctor``), and tests hold each of them to the contract.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from functools import lru_cache

from ppdiffusers_tome.tools.doctor.zoo.specimen import Specimen


@lru_cache(maxsize=1)
def specimens() -> tuple[Specimen, ...]:
    """Every specimen of this folder, by name of its file."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "specimen")
    return tuple(replace(importlib.import_module(f"{__name__}.{name}").SPECIMEN, name=name) for name in names)

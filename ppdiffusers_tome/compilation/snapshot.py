"""A snapshot of a model's state, to find what changes in place."""

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np


class Snapshot:
    """Copies of what can change in place, beside it.

    Attributes:
        arrays: each array with its copy.
        tensors: each tensor after its mapping and key. It is compared by identity, as two scalars may be equal.
        slots: each slot of a layer's method, with the function inside of it and its overrides.
    """

    def __init__(self) -> None:
        self._containers: list[tuple[Any, Any, Any]] = []
        self.arrays: list[tuple[np.ndarray, np.ndarray]] = []
        self.tensors: list[tuple[Mapping[Any, Any], Any, Any]] = []
        self.slots: list[tuple[Any, Any, Any]] = []

    def add(self, container: Any, owner: Any) -> None:
        """Copy a container, or the attributes of its owner."""
        # Of mappings, only an OrderedDict, such as that of sublayers, is compared with its order, in which layers run.
        kind = next((each for each in (OrderedDict, list, set) if isinstance(container, each)), dict)
        self._containers.append((container, kind(container), owner))

    def is_unchanged(self) -> bool:
        """Return whether everything is as it was."""
        try:
            return (
                all(container == copy for container, copy, _ in self._containers)
                and all(holder.get(name) is x for holder, name, x in self.tensors)
                and all(slot.inner is inner and slot.overrides is found for slot, inner, found in self.slots)
                and all(np.array_equal(array, copy) for array, copy in self.arrays)
            )
        except Exception:  # Values such as tensors cannot be compared.
            return False

    def find_change(self) -> str | None:
        """Return what has changed in a container as a clause, or None."""
        for container, copy, owner in self._containers:
            with suppress(Exception):
                if container == copy:
                    continue
            changed = container.items() if isinstance(copy, dict) else ()
            names = ", ".join(str(name) for name, value in changed if copy.get(name) is not value)
            return f"{type(owner).__name__} sets its {names or 'state'}"
        return None

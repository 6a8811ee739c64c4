"""The values that a denoiser's calls share from step to step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import paddle

from ppdiffusers_tome.merging.reduction import TokenReduction


class CallIdentity:
    """The identity of a call among the others of its step.

    Args:
        shape: of the latents.
        conditioning: the texts, class labels and the like, of which a pipeline passes the same or equal tensors in
            every step.
    """

    def __init__(self, shape: Sequence[int] = (), conditioning: Sequence[paddle.Tensor] = ()) -> None:
        self._shape, self._conditioning = shape, conditioning
        self._versions = [tensor.inplace_version for tensor in conditioning]

    def matches(self, identity: "CallIdentity") -> bool:
        """Return whether another step's call has the same identity."""
        # A tensor that changed meanwhile differs from what it was, also where the new one is a view of the same memory.
        # Comparing values waits for the device.
        mine, others = self._conditioning, identity._conditioning
        return self._shape == identity._shape and len(mine) == len(others) and all(
            a.inplace_version == version
            and (a is b or (a.shape == b.shape and a.dtype == b.dtype and bool((a == b).all())))
            for a, version, b in zip(mine, self._versions, others, strict=True)
        )  # fmt: skip


@dataclass(eq=False)
class SharedValues:
    """The values of a call from the step before, for the next."""

    identity: CallIdentity  # by which the call of the next step finds these
    # For ``reuse_steps``, by the path of a block, layout and batch.
    reductions: dict[Any, TokenReduction] = field(default_factory=dict)
    # For the cache over steps, which alone looks into them, by the path of a layer.
    histories: dict[str, tuple[Any, ...]] = field(default_factory=dict)


def list_tensors(value: Any) -> Iterator[paddle.Tensor]:
    """Yield the tensors in nested tuples, lists and dictionaries."""
    if isinstance(value, paddle.Tensor):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from list_tensors(item)

"""The choice of the computed steps by what skipping them costs.

One image with every step computed tells how well each layer's value at a step is predicted from any two earlier steps;
images without one single step tell what an error there does to the image. Dynamic programming then finds the computed
steps with the least expected error (DPCache, arXiv 2602.22654; LeMiCa, arXiv 2511.00090).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.patching.apply import apply_config, remove_tome
from ppdiffusers_tome.patching.attach import list_attached_blocks
from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.patching.state.step_memory import SLOPE, map_tensors
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.step_schedule import MIN_STEPS
from ppdiffusers_tome.tuning.results import MeasuredImage

_MAX_NUMBERS = 65536  # of one layer's value at one step; more are thinned out evenly
_MAX_PROBES = 12  # images without one step; the errors of the steps between are interpolated
_MAX_GAP = 12  # steps from one computed step to the next, or twice the average
_TINY = 1e-12
_Values = dict[Hashable, dict[int, list[np.ndarray]]]  # of layers, by step


@dataclass(frozen=True)
class StepErrors:
    """The cost of skipping steps in one image.

    Attributes:
        products: of each layer that a skipped step predicts, the inner products of its values at any two steps,
            ``[layers, steps, steps]``.
        damage: the mean squared error of the image, in 0 to 1, when a step alone is skipped, ``[steps]``; the first and
            the last are always computed.
    """

    products: np.ndarray
    damage: np.ndarray

    def compute_error(self, first: int | None, last: int, step: int) -> np.ndarray:
        """Compute the squared error of a step predicted from two, ``[layers]``."""
        weights = np.zeros(len(self.damage))
        weights[step], weights[last] = 1, -1
        if first is not None:
            share = SLOPE * (step - last) / (last - first)
            weights[first], weights[last] = share, -1 - share
        return np.maximum(weights @ self.products @ weights, _TINY)

    def compute_cost(self, first: int | None, last: int, step: int) -> float:
        """Compute the image's error if a step is predicted from two.

        It is the mean over layers, of which none is known to weigh more.
        """
        alone = self.compute_error(step - 2 if step > 1 else None, step - 1, step)
        return float(self.damage[step] * np.mean(self.compute_error(first, last, step) / alone))


def count_images(num_steps: int) -> int:
    """Count the images that ``measure_step_errors`` generates."""
    return 1 + len(_list_probes(num_steps))


def measure_step_errors(pipe: Any, generate: Callable[[], MeasuredImage]) -> StepErrors:
    """Measure what skipping steps costs in one image.

    The function generates the same image at every call. The pipeline has no ToMe afterwards.

    Raises:
        NothingToMergeError: the pipeline has no block that a skipped step could omit.
        ToMeValueError: the denoiser does not run once for each step of one denoising, or there are too few steps.
    """
    whole = ToMeConfig(0.0, cache=_TINY)
    try:
        apply_config(pipe, whole)
        values: _Values = {}
        for _, model in list_models(pipe):
            for _, _, override in list_attached_blocks(model):
                override.state.record = partial(_record, values, override.state)
        reference = generate().pixels
        products = [_multiply(by_step) for by_step in values.values()]
        counts = {len(product) for product in products}
        if len(counts) != 1 or min(counts) < MIN_STEPS:
            raise ToMeValueError(
                "the computed steps cannot be chosen for this call, as its denoiser does not run once for each step of "
                f"one denoising with {MIN_STEPS} steps or more; give a fraction or a list as cache"
            )
        (num_steps,) = counts
        probes, errors = _list_probes(num_steps), []
        for probe in probes:
            others = tuple(step for step in range(num_steps) if step != probe)
            apply_config(pipe, replace(whole, cache=others))
            errors.append(np.mean(np.square((reference.astype(np.float64) - generate().pixels) / 255)))
    finally:
        remove_tome(pipe)
    damage = np.exp(np.interp(np.arange(num_steps), probes, np.log(np.maximum(errors, _TINY))))
    return StepErrors(np.stack(products), damage)


def choose_steps(errors: Sequence[StepErrors], num_computed: int) -> tuple[int, ...]:
    """Choose so many computed steps, with the least expected error.

    The first and the last are always among them.
    """
    num_steps = len(errors[0].damage)
    max_gap = max(_MAX_GAP, 2 * num_steps // num_computed)

    @cache
    def compute_step(first: int | None, last: int, step: int) -> float:
        return float(np.mean([each.compute_cost(first, last, step) for each in errors]))

    def compute_gap(first: int | None, last: int, end: int) -> float:
        """Compute the expected error of skipping the steps between two computed ones."""
        return sum(compute_step(first, last, step) for step in range(last + 1, end))

    # The least error with so many computed steps, by the last two of them.
    best: dict[tuple[int | None, int], tuple[float, tuple[int, ...]]] = {(None, 0): (0.0, (0,))}
    for remaining in reversed(range(num_computed - 1)):
        longer: dict[tuple[int | None, int], tuple[float, tuple[int, ...]]] = {}
        for (first, last), (error, steps) in best.items():
            for step in range(last + 1, min(num_steps - remaining, last + max_gap + 1)):
                total = error + compute_gap(first, last, step)
                if (last, step) not in longer or total < longer[last, step][0]:
                    longer[last, step] = total, (*steps, step)
        best = longer
    return min(found for (_, last), found in best.items() if last == num_steps - 1)[1]


def _list_probes(num_steps: int) -> list[int]:
    """List the steps to skip alone, spread between first and last."""
    spread = np.linspace(1, num_steps - 2, min(_MAX_PROBES, math.ceil(num_steps / 2)))
    return sorted({*map(int, spread.round())})


def _record(values: _Values, owner: Hashable, step: int, key: Hashable, value: Any) -> None:
    """Store part of a layer's value at a step."""
    numbers = values.setdefault((owner, key), {}).setdefault(step, [])
    map_tensors(lambda tensor: numbers.append(_thin_out(tensor)), value)


def _thin_out(tensor: paddle.Tensor) -> np.ndarray:
    flat = tensor.flatten()
    return flat[:: math.ceil(flat.shape[0] / _MAX_NUMBERS)].astype("float32").numpy()


def _multiply(by_step: dict[int, list[np.ndarray]]) -> np.ndarray:
    """Return the inner products of all pairs of equally large steps."""
    rows = [np.concatenate(by_step.get(step, [np.zeros(0, np.float32)])) for step in range(max(by_step) + 1)]
    if len({len(row) for row in rows}) > 1:
        return np.zeros((0, 0))
    matrix = np.stack(rows).astype(np.float64)
    return matrix @ matrix.T

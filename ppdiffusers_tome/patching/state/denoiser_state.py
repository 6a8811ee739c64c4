"""The state of a denoiser with ToMe: settings, warnings, running calls, a report."""

import re
from dataclasses import dataclass
from typing import Any

from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError
from ppdiffusers_tome.messages import warn_user
from ppdiffusers_tome.settings.config import ToMeConfig


@dataclass(frozen=True)
class StepReport:
    """The calls of a denoiser in one image.

    There is one a step or, with guidance in calls of its own, two; several ControlNets with one config add up theirs.

    Attributes:
        num_computed, num_skipped: calls that ran all layers, and calls in which the cache over steps skipped most.
        cache_bytes: the memory of the cache over steps at the end of the image.
        computed_steps: the steps that ran all layers, by place in the scheduler's list of timesteps.
    """

    num_computed: int = 0
    num_skipped: int = 0
    cache_bytes: int = 0
    computed_steps: tuple[int, ...] = ()

    def __add__(self, report: "StepReport") -> "StepReport":
        return StepReport(
            self.num_computed + report.num_computed, self.num_skipped + report.num_skipped,
            self.cache_bytes + report.cache_bytes, tuple(sorted({*self.computed_steps, *report.computed_steps})),
        )  # fmt: skip


class DenoiserState:
    """The state that all overrides of a denoiser share; copies keep settings."""

    def __init__(self, config: ToMeConfig, max_timestep: float = 1000) -> None:
        self.config = config
        self.max_timestep = max_timestep  # that of pure noise
        self.last_image: StepReport | None = None  # with a cache over steps
        self.awaits_blocks = True  # until a block ran in which tokens may merge, or a warning said why none can
        self.is_removed = False
        self.running = set[object]()  # the calls, in any thread
        self._warned = set[str]()

    def __deepcopy__(self, memo: dict[int, Any]) -> "DenoiserState":
        return DenoiserState(self.config, self.max_timestep)

    def __reduce__(self) -> Any:
        raise ToMeTypeError(
            "a model with ToMe cannot be pickled; remove_tome first, and save its settings by "
            "model.tome.config.save('tome.json')"
        )

    def require_applied(self) -> None:
        """Refuse a backward pass through layers whose ToMe is gone."""
        if self.is_removed:
            raise ToMeValueError(
                "ToMe was removed or changed between a call with gradient checkpointing and its backward pass, which "
                "runs the layers again; change it after the backward pass"
            )

    def warn_once(self, message: str) -> None:
        """Warn once with these words, whatever their numbers, while this ToMe is applied."""
        words = re.sub(r"\d+", "", message)
        if words not in self._warned:
            self._warned.add(words)
            warn_user(message)

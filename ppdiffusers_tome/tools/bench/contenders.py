"""Who is compared: the unmerged model, the port, ours, and what merging could reach at best. One entry a contender.

Importing this knows no Paddle, so that the command line can name the contenders at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.presets import presets

if TYPE_CHECKING:
    import paddle

    from ppdiffusers_tome.patching.blocks import MergeableBlock

NONE, RATIO_0, REMOVED, PORT, OURS, OURS_TILE, OURS_FAST, FREE = (
    "none", "ratio-0", "removed", "port", "ours", "ours-tile", "ours-fast", "free",
)  # fmt: skip
# Of every method that keeps every query, by the method's name.
OURS_KEYS = {name: f"ours-{name}" for name, method in METHODS.items() if method.keeps_queries}
# Of every preset, by the preset's name.
PRESETS = {name: f"preset-{name}" for name in presets()}
TILE, REUSE_STEPS = 16, 4
_REMOVED_RATIO = 0.5


@dataclass(frozen=True)
class Contender:
    """One of those who are compared.

    Attributes:
        name: on the command line and in the tables.
        meaning: half a sentence for the reader of a table.
        takes_ratio: whether it is run at every ratio.
        put: put it on an unmerged model or pipeline, at a ratio and a ``max_downsample`` as in ``ToMeConfig``.
    """

    name: str
    meaning: str
    takes_ratio: bool
    put: Callable[[Any, float, int | None], None]


def put_on(model_or_pipe: Any, name: str, ratio: float | None, max_downsample: int | None) -> None:
    """Put a contender on a model or pipeline, in place of whichever is on it.

    Args:
        model_or_pipe: a UNet or transformer, or a pipeline that has one.
        name: of ``CONTENDERS``.
        ratio: share of the tokens to merge; None for a contender that takes none.
        max_downsample: 1, 2, 4, 8, or None for the finest level that has attention.
    """
    take_off(model_or_pipe)
    CONTENDERS[name].put(model_or_pipe, 0.0 if ratio is None else ratio, max_downsample)


def take_off(model_or_pipe: Any) -> None:
    """Leave a model or pipeline unmerged, whichever contender is on it."""
    from ppdiffusers_tome.api import remove_tome

    remove_tome(model_or_pipe)  # ours and the port
    for layer in denoiser(model_or_pipe).sublayers(include_self=True):
        for hooks in (layer._forward_pre_hooks, layer._forward_post_hooks):
            for hook_id in [i for i, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), _FreeHooks)]:
                del hooks[hook_id]


def denoiser(model_or_pipe: Any) -> Any:
    """The UNet or transformer of a pipeline; a model stands for itself."""
    return getattr(model_or_pipe, "unet", getattr(model_or_pipe, "transformer", model_or_pipe))


class _FreeHooks:
    """Drop tokens before a sublayer and restore their number behind it, for as little as that can cost.

    Tokens are dropped by slicing. What comes back is a tensor of zeros that is made once and shared by all sublayers of
    one shape: not even a copy. So nothing that matches, merges and unmerges can be faster.
    """

    def __init__(self, ratio: float, zeros: dict[tuple, paddle.Tensor]) -> None:
        self._ratio, self._zeros = ratio, zeros

    def drop(self, sublayer: Any, inputs: tuple) -> tuple:
        """``inputs[0]``: ``[batch, tokens, channels]``; ``int(tokens * ratio)`` of its tokens are left out."""
        self._num_tokens = inputs[0].shape[1]
        num_left = self._num_tokens - int(self._num_tokens * self._ratio)
        return (inputs[0][:, :num_left], *inputs[1:])

    def restore(self, sublayer: Any, inputs: tuple, output: paddle.Tensor) -> paddle.Tensor:
        import paddle

        shape = (output.shape[0], self._num_tokens, output.shape[2])
        if (shape, output.dtype) not in self._zeros:
            self._zeros[shape, output.dtype] = paddle.zeros(shape, dtype=output.dtype)
        return self._zeros[shape, output.dtype]


def _put_nothing(model_or_pipe: Any, ratio: float, max_downsample: int | None) -> None:
    pass


def _put_ours(model_or_pipe: Any, ratio: float, max_downsample: int | None, **settings: Any) -> None:
    from ppdiffusers_tome.api import apply_tome

    apply_tome(model_or_pipe, ratio, max_downsample, **settings)


def _put_preset(model_or_pipe: Any, ratio: float, max_downsample: int | None, *, preset: str) -> None:
    from ppdiffusers_tome.api import apply_tome

    apply_tome(model_or_pipe, preset)  # which has a ratio and levels of its own


def _put_and_remove_ours(model_or_pipe: Any, ratio: float, max_downsample: int | None) -> None:
    from ppdiffusers_tome.api import remove_tome

    _put_ours(model_or_pipe, _REMOVED_RATIO, max_downsample)
    remove_tome(model_or_pipe)


def _put_port(model_or_pipe: Any, ratio: float, max_downsample: int | None) -> None:
    from ppdiffusers_tome.install import install, uninstall

    level = max_downsample or min(site.level for site in _sites(model_or_pipe, None))
    uninstall()  # our methods stand in place of the port's
    try:
        model_or_pipe.apply_tome(ratio=ratio, max_downsample=level)
    finally:
        install()


def _put_free(model_or_pipe: Any, ratio: float, max_downsample: int | None) -> None:
    from ppdiffusers_tome.patching.adapters.adapter import ATTENTION
    from ppdiffusers_tome.patching.layers import find_layer

    zeros: dict[tuple, paddle.Tensor] = {}
    for site in _sites(model_or_pipe, max_downsample):
        point = site.adapter.points[ATTENTION][0]
        sublayer = find_layer(site.block, point.leave)
        # A section that begins and ends in different layers needs the tokens between them to be kept in step.
        if sublayer is not None and point.is_one_layer:
            hooks = _FreeHooks(ratio, zeros)
            sublayer.register_forward_pre_hook(hooks.drop)
            sublayer.register_forward_post_hook(hooks.restore)


def _sites(model_or_pipe: Any, max_downsample: int | None) -> list[MergeableBlock]:
    """The blocks where ours would merge."""
    from ppdiffusers_tome.patching.blocks import find_blocks

    sites = find_blocks(denoiser(model_or_pipe))
    level = max_downsample or min((site.level for site in sites), default=1)
    return [site for site in sites if site.level <= level]


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender(NONE, "the model without token merging", False, _put_nothing),
        Contender(RATIO_0, "ours applied with ratio 0", False, _put_ours),
        Contender(REMOVED, "ours applied and removed again", False, _put_and_remove_ours),
        Contender(PORT, "ppdiffusers' own port of tomesd", True, _put_port),
        Contender(OURS, "this package, its defaults", True, _put_ours),
        Contender(OURS_TILE, f"this package with tile={TILE}", True, partial(_put_ours, tile=TILE)),
        Contender(
            OURS_FAST, f"this package with tile={TILE}, reuse_steps={REUSE_STEPS}, reuse_blocks=True; a run starts "
            "with new matchings, so few steps reuse less than a whole picture", True,
            partial(_put_ours, tile=TILE, reuse_steps=REUSE_STEPS, reuse_blocks=True),
        ),
        *(
            Contender(
                contender, f"this package with method='{method}': fewer keys and values by the same ratio, all queries "
                "kept: less saved and less changed at one ratio", True, partial(_put_ours, method=method),
            )
            for method, contender in OURS_KEYS.items()
        ),
        *(
            Contender(
                contender, f"this package with the preset '{preset}', at its own ratio and levels", False,
                partial(_put_preset, preset=preset),
            )
            for preset, contender in PRESETS.items()
        ),
        Contender(
            FREE, "the limit: as many tokens dropped by slicing; no matching, no merging, and zeros in place of "
            "unmerging", True, _put_free,
        ),
    )
}  # fmt: skip

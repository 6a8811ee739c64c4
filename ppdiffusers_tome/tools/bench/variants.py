"""The variants that benchmarks compare, from the unmerged model to the limit.

This module imports no Paddle, so that the command line can name the variants at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.presets import presets

if TYPE_CHECKING:
    import paddle

    from ppdiffusers_tome.patching.blocks import MergeableBlock

NONE, PORT, OURS, FREE = "none", "port", "ours", "free"
PRESETS = {name: f"preset-{name}" for name in presets()}
TILE = 16


@dataclass(frozen=True)
class Variant:
    """One of the variants that are compared.

    Attributes:
        meaning: half a sentence for the reader of a table.
        apply: applies it to an unmerged model or pipeline at a ratio; may return hooks to remove afterwards.
        takes_ratio: whether the variant runs at every ratio, or has none or one of its own.
    """

    meaning: str
    apply: Callable[[Any, float], list[Any] | None]
    takes_ratio: bool = True


def label_variants(names: Sequence[str], ratios: Sequence[float]) -> list[str]:
    """Return a label for each variant, such as ``ours 0.5``; ``none`` is first."""
    chosen = [name for name in VARIANTS if name in names or name == NONE]
    plain = [name for name in chosen if not VARIANTS[name].takes_ratio]
    return plain + [f"{name} {ratio:g}" for ratio in ratios for name in chosen if VARIANTS[name].takes_ratio]


def split_label(label: str) -> tuple[str, float | None]:
    """Return a label's variant and ratio; None where the variant takes no ratio."""
    name, _, ratio = label.partition(" ")
    return name, float(ratio) if ratio else None


@contextmanager
def variant_applied(model_or_pipe: Any, label: str) -> Iterator[None]:
    """Apply a variant to an unmerged model inside a ``with`` statement."""
    from ppdiffusers_tome.api import remove_tome

    name, ratio = split_label(label)
    hooks = VARIANTS[name].apply(model_or_pipe, ratio or 0.0)
    try:
        yield
    finally:
        remove_tome(model_or_pipe)  # which removes the port, too
        for hook in hooks or ():
            hook.remove()


def find_denoiser(model_or_pipe: Any) -> Any:
    """Return the UNet or transformer of a pipeline, or the model itself."""
    return getattr(model_or_pipe, "unet", getattr(model_or_pipe, "transformer", model_or_pipe))


def apply_port(model_or_pipe: Any, ratio: float, max_downsample: int | None = None) -> None:
    """Apply ppdiffusers' own port of tomesd; ``remove_tome`` removes it.

    Args:
        model_or_pipe: a UNet, or a pipeline that has one.
        ratio: fraction of the tokens to merge.
        max_downsample: 1, 2, 4, 8, or None for the finest level that has attention.
    """
    from ppdiffusers_tome.install import install, uninstall

    level = max_downsample or _finest_blocks(model_or_pipe)[0].level
    uninstall()  # our methods take the place of the port's
    try:
        model_or_pipe.apply_tome(ratio=ratio, max_downsample=level)
    finally:
        install()


def _make_ours(note: str = "", **settings: Any) -> Variant:
    """Make a variant of this package."""
    takes_ratio = "config" not in settings  # a preset has a ratio of its own

    def apply(model_or_pipe: Any, ratio: float) -> None:
        from ppdiffusers_tome.api import apply_tome

        arguments: dict[str, Any] = {"ratio": ratio, **settings} if takes_ratio else settings
        apply_tome(model_or_pipe, **arguments)

    words = ", ".join(f"{name}={value!r}" for name, value in settings.items()) or "its defaults"
    return Variant(f"this package with {words}{note}", apply, takes_ratio)


def _apply_free(model_or_pipe: Any, ratio: float) -> list[Any]:
    """Drop tokens before self-attention by slicing, and return zeros instead.

    The zeros are made once per shape and not copied, so nothing that matches, merges and unmerges can be faster.
    """
    from ppdiffusers_tome.patching.adapters.adapter import ATTENTION
    from ppdiffusers_tome.patching.blocks import find_layer

    zeros: dict[tuple, paddle.Tensor] = {}

    def drop(layer: Any, inputs: tuple) -> tuple:
        layer.num_tokens_before = inputs[0].shape[1]
        return (inputs[0][:, : layer.num_tokens_before - int(layer.num_tokens_before * ratio)], *inputs[1:])

    def restore(layer: Any, inputs: tuple, output: paddle.Tensor) -> paddle.Tensor:
        import paddle

        shape = (output.shape[0], layer.__dict__.pop("num_tokens_before"), output.shape[2])
        if (shape, output.dtype) not in zeros:
            zeros[shape, output.dtype] = paddle.zeros(shape, dtype=output.dtype)
        return zeros[shape, output.dtype]

    hooks = []
    for block in _finest_blocks(model_or_pipe):
        point = block.adapter.points[ATTENTION][0]
        layer = find_layer(block.block, point.layer)
        # Merging over several layers would need the tokens between them to be kept in step.
        if layer is not None and not point.merges_inside:
            hooks += [layer.register_forward_pre_hook(drop), layer.register_forward_post_hook(restore)]
    return hooks


def _finest_blocks(model_or_pipe: Any) -> list[MergeableBlock]:
    """Return the blocks in which this package merges by default."""
    from ppdiffusers_tome.patching.blocks import find_blocks

    blocks = find_blocks(find_denoiser(model_or_pipe))
    return [block for block in blocks if block.level == min(each.level for each in blocks)]


VARIANTS = {
    NONE: Variant("the model without token merging", lambda model_or_pipe, ratio: None, takes_ratio=False),
    PORT: Variant("ppdiffusers' own port of tomesd", apply_port),
    OURS: _make_ours(),
    "ours-tile": _make_ours(tile=TILE),
    "ours-fast": _make_ours(
        "; a run starts with new matchings, so few steps reuse less than a whole image",
        tile=TILE, reuse_steps=4, reuse_blocks=True,
    ),
    **{f"ours-{method}": _make_ours(method=method) for method in METHODS if METHODS[method].keeps_queries},
    **{label: _make_ours(config=preset) for preset, label in PRESETS.items()},
    FREE: Variant("the limit: as many tokens dropped by slicing, without matching or unmerging", _apply_free),
}  # fmt: skip

"""``apply_tome`` and ``use_tome``, and the mixin."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from ppdiffusers_tome.errors import ToMeTypeError
from ppdiffusers_tome.patching.apply import AppliedToMe, apply_config, get_tome, keep_applied, remove_tome
from ppdiffusers_tome.settings.combine import UNSET, combine_settings
from ppdiffusers_tome.settings.config import Ratio, ToMeConfig
from ppdiffusers_tome.settings.presets import PRESETS
from ppdiffusers_tome.settings.text import did_you_mean, shorten_repr

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])


def _explain_arguments(function: Function) -> Function:
    """Name the remedy for a misspelled setting or a second ratio."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: Any, **settings: Any) -> Any:
        for name in (name for name in settings if name not in known):
            suggestion = did_you_mean(name, known)
            if name in ("preset", "settings"):
                suggestion = f"; give it as config={shorten_repr(settings[name])}, or in place of the ratio"
            raise ToMeTypeError(f"{function.__name__} has no argument {name!r}{suggestion}")
        if len(args) > 1 and "ratio" in settings:
            first, ratio = shorten_repr(args[1]), shorten_repr(settings["ratio"])
            raise ToMeTypeError(
                f"{first} and ratio={ratio} are both the ratio; pass one of them, or a preset with another ratio as "
                f"apply_tome(config={first}, ratio={ratio})"
            )
        return function(*args, **settings)

    return cast(Function, call)


@_explain_arguments
def apply_tome(
    model_or_pipe: T,
    ratio: Ratio | str | ToMeConfig = UNSET,
    max_downsample: int | None = UNSET,
    sx: int = UNSET,
    sy: int = UNSET,
    use_rand: bool = UNSET,
    merge_attn: bool = UNSET,
    merge_crossattn: bool = UNSET,
    merge_mlp: bool = UNSET,
    seed: int = UNSET,
    *,
    tile: int | None = UNSET,
    reuse_steps: int = UNSET,
    method: str = UNSET,
    start: float = UNSET,
    end: float = UNSET,
    st: int = UNSET,
    cache: float = UNSET,
    config: ToMeConfig | str | Path | None = None,
) -> T:
    """Merge redundant tokens in a model, or every denoiser of a pipeline.

    Arguments you pass win; the rest come from the preset or config, or else are the defaults of ``ToMeConfig``:
    ``apply_tome(pipe, "quality", seed=1)`` is that preset with another seed. Settings applied before are replaced.

    Args:
        model_or_pipe: an argument of the function only, not of the method: a ppdiffusers pipeline (its UNet, prior,
            transformer and ControlNets merge, its VAE and text encoder never do) or a model.
        ratio: fraction of the tokens to merge (default 0.5), ``0 <= ratio < 1 - 1 / (sx * sy * st)``; the methods
            ``keys`` and ``todo`` accept that limit, too. 0.5 halves the tokens that attention sees (with these methods,
            its keys); 0 leaves the model exactly as it is. Several numbers are a ramp over the denoising:
            ``(0.7, 0.3)`` falls from 0.7 at pure noise to 0.3 at the final image. The name of a preset or a
            ``ToMeConfig`` stands for ``config``.
        max_downsample: merge in blocks whose grid is at most this many times smaller than the latent: 1, 2, 4 or 8.
            None (default): the finest level at which the model has attention, 1 on Stable Diffusion 1 and 2, 2 on SDXL.
        sx, sy: stride in tokens, 1 or more (default 2): every cell of ``sx`` columns and ``sy`` rows has one
            destination token.
        use_rand: choose the destination at random in its cell (default); False chooses the top left token.
        merge_attn: merge around self-attention (default True).
        merge_crossattn: merge around cross-attention (default False; rarely useful).
        merge_mlp: merge around the feed-forward layer (default False; rarely useful).
        seed: of the random destinations, ``0 <= seed < 2**63`` (default 0). They depend on seed, timestep and grid
            alone, never on a global generator, and are the same for every image.
        tile: compare sources with destinations in tiles of about ``tile`` by ``tile`` tokens, and one cell around
            them, so that the cost of matching grows linearly with the tokens. At least the larger of ``sx`` and ``sy``;
            16 is a good size. None (default) compares all with all, as the papers do.
        reuse_steps: denoising steps that share a matching, 1 or more (default 1: no reuse).
        method: ``"tome"`` (default) merges similar tokens; ``"keys"`` and ``"todo"`` keep every query and reduce the
            keys and values. ``"keys"`` weights merged keys by group size, wherever attention takes a mask.
        start, end: merge in this part of the denoising only, ``0 <= start < end <= 1`` (default: all of it).
        st: stride over the frames of a video, 1 or more. With 1 (default) each frame merges by itself. A larger one
            keeps more detail where little moves and costs more; it needs a model whose attention is over all frames at
            once (Wan, CogVideoX, HunyuanVideo).
        cache: fraction of the denoising steps that skip most layers and predict what they add from the computed steps
            before, ``0 <= cache < 1`` (default 0: every step is computed). It needs a pipeline, which knows the number
            of steps, and 9 steps or more.
        config: a ``ToMeConfig``, the name of a preset (``"quality"`` or ``"balanced"``), or a JSON file
            that ``ToMeConfig.save`` wrote; the source of every setting that you do not pass, the ratio included.

    Progress of the denoising is the place of the step in the scheduler's timesteps, 0 at pure noise and 1 at the final
    image. A denoiser that is called outside its pipeline uses the timestep: 1000 is pure noise, 0 the image; there
    ``cache`` and ``reuse_steps`` have no effect. A ramp, ``start``, ``end``, ``cache`` and ``reuse_steps`` read the
    timestep on the host, once for every call of the denoiser.

    Returns:
        The pipeline or model, so that calls chain.

    Raises:
        ToMeTypeError: a setting has the wrong type.
        ToMeValueError: a setting is out of range, or conflicts with another.
        NothingToMergeError: no block would merge. After any error the model is as it was before.

    Example:
        >>> pipe = apply_tome(pipe, ratio=0.5)  # or pipe.apply_tome(ratio=0.5)
        >>> pipe.tome.config.ratio
        0.5

    Arguments are those of tomesd's ``apply_patch`` and more. Papers: Token Merging for Fast Stable Diffusion (Bolya &
    Hoffman 2023), sections 3 and 4; for ``tile`` and the reuse, ToMA (Lu et al., ICML 2025); for other methods,
    ``merging.methods``; for ``cache``, TaylorSeer (arXiv 2503.06923), DeepCache (CVPR 2024) and FreqCa (arXiv
    2510.08669).
    """
    settings: dict[str, Any] = dict(
        ratio=ratio, max_downsample=max_downsample, sx=sx, sy=sy, use_rand=use_rand, merge_attn=merge_attn,
        merge_crossattn=merge_crossattn, merge_mlp=merge_mlp, seed=seed, tile=tile, reuse_steps=reuse_steps,
        method=method, start=start, end=end, st=st, cache=cache,
    )  # fmt: skip
    if isinstance(ratio, ToMeConfig) or (isinstance(ratio, str) and ratio in PRESETS):
        if config is not None:
            raise ToMeTypeError(
                f"ratio={shorten_repr(ratio)} and config={shorten_repr(config)} both hold all settings; pass one "
                "of them, and single settings with it"
            )
        config, settings["ratio"] = ratio, UNSET
    return apply_config(model_or_pipe, combine_settings(config, settings))


@contextmanager
def use_tome(model_or_pipe: T, *args: Any, **settings: Any) -> Iterator[T]:
    """Apply ToMe in a ``with`` statement, and restore what was applied before.

    Requests that run at the same time need a ``shared_copy`` each, as settings of a pipeline hold in all threads.

    Args:
        model_or_pipe, args, settings: as for ``apply_tome``, whose errors are raised, too.

    Yields:
        ``model_or_pipe``. After any error, what was applied before is applied again.

    Raises:
        ToMeValueError: a call of the model runs at the end. The settings of the ``with`` statement then stay.

    Example:
        >>> with use_tome(pipe, ratio=0.5):
        ...     image = pipe(prompt).images[0]  # doctest: +SKIP
    """
    with keep_applied(model_or_pipe):
        yield apply_tome(model_or_pipe, *args, **settings)


class ToMeMixin:
    """Methods for a class of your own: ``class MyPipeline(ToMeMixin, StableDiffusionPipeline)``."""

    # A function whose first argument is the pipeline is a method.
    apply_tome = apply_tome
    remove_tome = remove_tome

    @property
    def tome(self) -> AppliedToMe | None:
        """The settings and blocks of ToMe by denoiser; None without it."""
        return get_tome(self)

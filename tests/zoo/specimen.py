"""Specimens: tiny models of classes that pipelines denoise with, and their calls."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.patching.denoisers import REFUSED
from ppdiffusers_tome.tuning.measurement import keep_random_state

if TYPE_CHECKING:
    import paddle

# Of the texts and videos that specimens are called with.
TEXT_TOKENS, TEXT_DIM, FRAMES = 5, 12, 3
# What most of the UNets share.
UNET: dict[str, Any] = dict(
    sample_size=16, in_channels=4, out_channels=4, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4
)
# Of models whose attention is ``attention_anywhere``.
GPU_ATTENTION = (
    "on GPUs; on a CPU ppdiffusers 0.29.0 lacks the attention it calls, and 0.29.1 has it with "
    "FLAGS_sdpa_select_math=yes in the environment; tested with a plain one"
)
# Of models that call Paddle's flash attention itself, in bfloat16.
FLASH_ATTENTION = "on a GPU only, as it calls a flash kernel in bfloat16; tested with a plain one"
# Of models whose norm is ``norms_anywhere``.
AVX512_NORM = "on GPUs, and on CPUs that have AVX-512, as Paddle's RMSNorm is for those alone; tested with a plain one"


@dataclass(frozen=True)
class Inputs:
    """The inputs of a specimen: tensors of a shape are always the same.

    Attributes:
        batch: rows of each.
        height, width: of the latent.
        timestep: from 999 to 0.
        frames: of a video.
    """

    batch: int = 2
    height: int = 16
    width: int = 16
    timestep: float = 500
    frames: int = FRAMES

    def image(self, *channels: int, scale: int = 1, seed: int = 0) -> paddle.Tensor:
        """A latent, ``[batch, *channels, height, width]``; ``scale`` times as high and wide."""
        return smooth_image(self.batch, *channels, scale * self.height, scale * self.width, seed=seed)

    def text(self, channels: int = TEXT_DIM, *, seed: int = 2) -> paddle.Tensor:
        """A text's embeddings."""
        return self.normal(TEXT_TOKENS, channels, seed=seed)

    def normal(self, *shape: int, seed: int) -> paddle.Tensor:
        """Normal numbers, ``[batch, *shape]``."""
        return normal(self.batch, *shape, seed=seed)

    def rows(self, row: Any, *, dtype: Any = "float32") -> paddle.Tensor:
        """The same for every row of the batch."""
        import paddle

        return paddle.to_tensor([row] * self.batch, dtype=dtype)

    @property
    def timesteps(self) -> paddle.Tensor:
        """The timestep of every row, float32."""
        return self.rows(self.timestep)

    @property
    def labels(self) -> paddle.Tensor:
        """A class for every row, of ten."""
        import paddle

        return paddle.arange(self.batch, dtype="int64") % 10


@dataclass(frozen=True, eq=False)
class Specimen:
    """A tiny real model with random weights.

    Attributes:
        about: which models look like it, for tables: ``Stable Diffusion 1 and 2``.
        model_class: the class, as ppdiffusers calls it.
        config: what it is made with.
        call: calls a model as its pipelines do.
        module: where the class is.
        construct: makes the model of a config where calling the class does not do.
        mended: while this lasts, ppdiffusers can run it.
        pipelines: a regular expression for names of pipelines whose denoiser of ``model_class`` looks like this one;
            "" for the usual look of the class, None for one that no name of a pipeline tells from the usual.
        broken: where ppdiffusers itself cannot run it as it is, for tables; ``construct`` and ``mended`` help.
        size: height and width of the latent, where learned positions allow no other number of tokens.
        since: the version of ppdiffusers that brings it; "" where all that are supported do.
        needs_paddle_3: whether ppdiffusers cannot run it with Paddle 2.6.
        pads_grid: whether its downsampler pads the height by a row, which is cut off again on the way up.
        scheduler: the class whose timesteps it gets; None for levels of noise, which are on no list of a scheduler.
        refused_block: the class in ``REFUSED`` of the blocks that it has instead of any that merge.
        name: of its file.
    """

    about: str
    model_class: str
    config: Mapping[str, Any]
    call: Callable[[Any, Inputs], Any]
    module: str = "ppdiffusers"
    construct: Callable[..., Any] | None = None
    mended: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    pipelines: str | None = ""
    broken: str = ""
    size: tuple[int, int] | None = None
    since: str = ""
    needs_paddle_3: bool = False
    pads_grid: bool = False
    scheduler: str | None = "DDIMScheduler"
    refused_block: str = ""
    name: str = ""

    @property
    def reason(self) -> str | None:
        """Why nothing merges in it; None where something does."""
        return REFUSED.get(self.refused_block or self.model_class)

    @property
    def is_there(self) -> bool:
        """True where the installed ppdiffusers has the class, with such a config."""
        if not self.since:
            return True
        import paddle

        if self.needs_paddle_3 and paddle.__version__.startswith("2."):
            return False
        model_class = getattr(importlib.import_module(self.module), self.model_class, None)
        return model_class is not None and self.config.keys() <= inspect.signature(model_class).parameters.keys()

    def build(self, **changes: Any) -> Any:
        """Build the model in evaluation mode with the same weights every time.

        Args:
            changes: of the config.
        """
        construct = self.construct or getattr(importlib.import_module(self.module), self.model_class)
        return create(construct, **{**self.config, **changes})

    def run(self, model: Any, **inputs: Any) -> paddle.Tensor:
        """Call a model.

        Args:
            model: of ``build``, whatever was put on it.
            inputs: of ``Inputs``; the others are the usual ones.

        Returns:
            What it predicts; ``[batch, values]`` where that is several tensors.
        """
        import paddle

        with self.mended():
            predicted = list(_tensors(self.call(model, Inputs(**inputs))))
        return predicted[0] if len(predicted) == 1 else paddle.concat([each.flatten(1) for each in predicted], axis=1)


def create(construct: Callable[..., Any], **config: Any) -> Any:
    """A model in evaluation mode whose weights depend on nothing but their names."""
    import numpy as np
    import paddle

    with keep_random_state():
        model = construct(**config)
        # Frequencies of the timestep's embedding are drawn at random too, but are no parameters.
        frequencies = [each for each in model.named_buffers() if each[0].endswith("time_proj.weight")]
        for name, weight in [*model.named_parameters(), *frequencies]:
            draw = np.asarray(np.random.default_rng(zlib.crc32(name.encode())).standard_normal(weight.shape))
            if len(weight.shape) <= 1:
                draw = 0.1 * draw + (name.endswith("weight") and "norm" in name)
            else:
                draw = draw / np.sqrt(np.prod(weight.shape) / max(weight.shape[:2]))
            weight.set_value(paddle.to_tensor(draw.astype(np.float32)))
    model.eval()
    return model


def normal(*shape: int, seed: int = 0) -> paddle.Tensor:
    """Normal numbers, float32, without any global generator."""
    import numpy as np
    import paddle

    return paddle.to_tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def smooth_image(*shape: int, seed: int = 0) -> paddle.Tensor:
    """Return ``[..., height, width]`` float32 whose neighbours resemble each other."""
    height, width = shape[-2:]
    coarse = normal(*shape[:-2], height // 2 + 1, width // 2 + 1, seed=seed)
    fine = coarse.repeat_interleave(2, axis=-2).repeat_interleave(2, axis=-1)[..., :height, :width]
    return fine + 0.3 * normal(*shape, seed=seed + 1)


def _tensors(output: Any) -> Iterator[paddle.Tensor]:
    """The tensors in what a model returns."""
    import paddle

    if isinstance(output, paddle.Tensor):
        yield output
    elif isinstance(output, (dict, list, tuple)):
        for each in output.values() if isinstance(output, dict) else output:
            yield from _tensors(each)


@contextlib.contextmanager
def attention_anywhere() -> Iterator[None]:
    """Let ``scaled_dot_product_attention_`` work on a CPU.

    Newer versions give it everywhere, and it then asks for a kernel of GPUs, as Paddle's own does.
    """
    import paddle.nn.functional as F

    with (
        _standing_in(F, "scaled_dot_product_attention_", _attention),
        _standing_in(F, "scaled_dot_product_attention", _attention),
    ):
        yield


@contextlib.contextmanager
def norms_anywhere() -> Iterator[None]:
    """``fused_rms_norm`` works on any CPU: where one lacks AVX-512, Paddle's ends the program."""
    import paddle.incubate.nn.functional as F

    with _standing_in(F, "fused_rms_norm", _rms_norm):
        yield


@contextlib.contextmanager
def kernels_anywhere() -> Iterator[None]:
    """Both of them."""
    with attention_anywhere(), norms_anywhere():
        yield


@contextlib.contextmanager
def _standing_in(module: Any, name: str, stand_in: Callable[..., Any]) -> Iterator[None]:
    """Replace a function of a module on a CPU, or where it is absent."""
    import paddle

    own = vars(module).get(name)
    if own is not None and not paddle.get_device().startswith("cpu"):
        yield
        return
    setattr(module, name, stand_in)
    try:
        yield
    finally:
        if own is None:
            delattr(module, name)
        else:
            setattr(module, name, own)


def _attention(
    query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor, attn_mask: paddle.Tensor | None = None, **_: Any
) -> paddle.Tensor:
    """Plain attention on ``[batch, tokens, heads, channels]``, without dropout, as these models call it.

    FLUX hands over bfloat16 and takes back what comes, so here that is float32.
    """
    import paddle
    import paddle.nn.functional as F

    if query.dtype == paddle.bfloat16:
        query, key, value = (x.astype("float32") for x in (query, key, value))
    query, key, value = (x.transpose([0, 2, 1, 3]) for x in (query, key, value))
    scores = paddle.matmul(query * (1 / math.sqrt(query.shape[-1])), key, transpose_y=True)
    if attn_mask is not None:
        scores = scores + attn_mask.astype(scores.dtype)
    return paddle.matmul(F.softmax(scores, axis=-1), value).transpose([0, 2, 1, 3])


def _rms_norm(
    x: paddle.Tensor, norm_weight: paddle.Tensor, *, epsilon: float, begin_norm_axis: int, **_: Any
) -> tuple[paddle.Tensor]:
    """Divide each row by the root of its mean square."""
    rows = x.astype("float32")
    axes = list(range(begin_norm_axis, x.ndim))
    return ((rows * (rows.square().mean(axes, keepdim=True) + epsilon).rsqrt()).astype(x.dtype) * norm_weight,)

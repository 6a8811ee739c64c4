"""The newest families that the installed ppdiffusers has, and FLUX, maybe a stand-in."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle.nn import Layer
from ppdiffusers.models.attention_processor import Attention

from zoo import Specimen, specimens
from zoo.specimen import Inputs, attention_anywhere, norms_anywhere

NEWEST = {each.name: each for each in specimens() if each.since}
THERE = {name: each for name, each in NEWEST.items() if each.is_there}
STAND_IN = replace(NEWEST["flux"], module="newer.stand_in", mended=attention_anywhere)
FLUX = THERE.get("flux", STAND_IN)
FAMILIES = {"flux": FLUX, **THERE}
# Of these the latent is a video's.
VIDEOS = ("cogvideox", "cogvideox_rotary", "cogvideox_vctrl", "hunyuan_video", "mochi", "vctrl", "wan", "wan_image")
# Whose positions turn queries and keys, a kind each.
ROTARY = [name for name in ("flux", "hunyuan_video", "wan", "cogvideox_rotary", "mochi") if name in FAMILIES]


def lacking(specimen: Specimen) -> list[pytest.MarkDecorator]:
    """Skip what the ppdiffusers that is imported lacks."""
    reason = f"needs ppdiffusers {specimen.since}: make test-newer SOURCE=folder"
    return [] if specimen.name in THERE else [pytest.mark.skip(reason=reason)]


def parametrize_specimens(*names: str) -> pytest.MarkDecorator:
    """Give a test these specimens; one skip where none is there."""
    names = names if THERE else names[:1]
    return pytest.mark.parametrize(
        "specimen", [pytest.param(NEWEST[name], id=name, marks=lacking(NEWEST[name])) for name in names]
    )


class PlainAttention:
    """Stands in for both of Paddle's: plain, in float32, to which FLUX casts too.

    Of the grid's ``num_tokens`` keys the ``seen`` are seen, all where it is None; a text's stand before or behind them.
    """

    def __init__(self, seen: np.ndarray | None = None, num_tokens: int = 0, *, text_first: bool = True) -> None:
        self.seen, self.num_tokens, self.text_first = seen, num_tokens, text_first

    def __call__(
        self, query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor, attn_mask: Any = None, **_: Any
    ) -> paddle.Tensor:
        dtype = query.dtype
        query, key, value = (x.astype("float32").transpose([0, 2, 1, 3]) for x in (query, key, value))
        scores = paddle.matmul(query, key, transpose_y=True) / math.sqrt(query.shape[-1])
        if attn_mask is not None:
            is_bool, mask = attn_mask.dtype == paddle.bool, attn_mask.astype("float32")
            scores = scores + ((mask - 1) * 1e9 if is_bool else mask)
        if self.seen is not None and query.shape[2] == key.shape[2] >= self.num_tokens:
            scores = scores + self._bias(key.shape[2])
        return paddle.matmul(F.softmax(scores, axis=-1), value).transpose([0, 2, 1, 3]).astype(dtype)

    def _bias(self, num_keys: int) -> paddle.Tensor:
        others = num_keys - self.num_tokens
        bias = np.zeros(num_keys, "float32")
        start = others if self.text_first else 0
        hidden = np.setdiff1d(np.arange(self.num_tokens), self.seen)
        bias[start + hidden] = -1e9
        return paddle.to_tensor(bias)

    @contextlib.contextmanager
    def put_in_place(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch, norms_anywhere():
            for name in ("scaled_dot_product_attention", "scaled_dot_product_attention_"):
                patch.setattr(F, name, self, raising=False)
            patch.setattr(paddle, "bfloat16", paddle.float32)
            yield

    def run(self, specimen: Specimen, model: Layer, **inputs: Any) -> np.ndarray:
        return self.call(specimen, model, *arguments(specimen, Inputs(**inputs)))

    @paddle.no_grad()
    def call(self, specimen: Specimen, model: Layer, args: tuple, keywords: dict[str, Any]) -> np.ndarray:
        """Return ``[batch, values]``, of all that a model returns."""
        with specimen.mended(), self.put_in_place():
            output = model(*args, **keywords)
        outputs = output.values() if isinstance(output, dict) else output
        while isinstance(outputs[0] if isinstance(outputs, (list, tuple)) else None, (list, tuple)):
            outputs = [each for several in outputs for each in several]
        each_flat = [each.astype("float32").flatten(1).numpy() for each in outputs]
        return np.concatenate(each_flat, axis=1)


def arguments(specimen: Specimen, inputs: Inputs) -> tuple[tuple, dict[str, Any]]:
    return specimen.call(lambda *given, **keywords: (given, keywords), inputs)


@paddle.no_grad()
def numbers(specimen: Specimen, model: Layer, changes: Any = None, **inputs: Any) -> np.ndarray:
    """Return a model's prediction; ``changes`` replace arguments of its call."""
    if changes is None:
        return specimen.run(model, **inputs).numpy()
    given, keywords = arguments(specimen, Inputs(**inputs))
    with specimen.mended():
        return model(*given, **{**keywords, **changes})[0].numpy()


def change(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest number."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def attentions(model: Layer) -> list[Attention]:
    """Those of blocks in which an image's tokens attend to themselves."""
    return [
        layer for path, layer in model.named_sublayers()
        if isinstance(layer, Attention) and path.rpartition(".")[2] in ("attn", "attn1") and "refiner" not in path
    ]  # fmt: skip

"""Checks of whole pipelines, and the parts that several are made of."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest
from paddle.nn import Layer
from ppdiffusers import transformers

import tiny
from patching.helpers import count_queries
from ppdiffusers_tome import get_tome, shared_copy
from ppdiffusers_tome.patching.attach import list_attached_blocks
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.settings.step_schedule import NOISE_HISTORIES, explain_noise_history
from ppdiffusers_tome.tools.recorder import record_merging
from zoo.specimen import attention_anywhere, keep_random_state

# A pipeline, and what it is called with, or a function that calls it.
Made = tuple[Any, dict[str, Any] | Callable[[], Any]]
# Generates with the same noise every time.
Draw = Callable[[], np.ndarray]
sag_fails_on_paddle_2 = pytest.mark.xfail(
    paddle.__version__.startswith("2."), raises=TypeError, strict=True,
    reason="StableDiffusionSAGPipeline calls Tensor.reshape(b, h, hw1, hw2), which takes 2 to 3 positional arguments",
)  # fmt: skip


def make_pipeline(make: Callable[[], Made]) -> tuple[Any, Draw]:
    """Make a pipeline, and a function that draws with it."""
    with keep_random_state():  # some constructors seed the global generators
        pipe, call = make()
    pipe.set_progress_bar_config(disable=True)
    return pipe, lambda: draw(pipe, call)


def draw(pipe: Any, call: dict[str, Any] | Callable[[], Any]) -> np.ndarray:
    with keep_random_state(), attention_anywhere():
        paddle.seed(0)
        np.random.seed(0)
        output = call() if callable(call) else pipe(**call, return_dict=False)[0]
    return tiny.to_numpy(output).astype("float32")


def build_pipeline(cls: str | type, **parts: Any) -> Any:
    """Build a pipeline of these parts, without the others that it takes."""
    cls = getattr(ppdiffusers, cls) if isinstance(cls, str) else cls
    taken, _ = cls._get_signature_keys(cls)
    return cls(**{**dict.fromkeys(taken), **parts})


def load_tokenizer() -> Any:
    return transformers.CLIPTokenizer.from_pretrained(str(tiny.PHOTOGRAPHS / "tokenizer"))


def build_text_encoder(kind: str = "CLIPTextModel", width: int = tiny.CROSS_DIM) -> Layer:
    """Build one that goes with ``load_tokenizer``."""
    tokenizer = load_tokenizer()
    return tiny.text_encoder(
        kind, vocab_size=len(tokenizer), hidden_size=width, projection_dim=width, num_hidden_layers=2,
        max_position_embeddings=32, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip


def text_parts() -> dict[str, Any]:
    return dict(tokenizer=load_tokenizer(), text_encoder=build_text_encoder())


def image_encoder(
    image: int = 16, patch: int = 4, projection: int = tiny.CROSS_DIM, layers: int = 1, width: int = 8,
    kind: Any = transformers.CLIPVisionModelWithProjection,
) -> Layer:  # fmt: skip
    config = transformers.CLIPVisionConfig(
        hidden_size=width, intermediate_size=16, num_hidden_layers=layers, num_attention_heads=2, image_size=image,
        patch_size=patch, projection_dim=projection,
    )  # fmt: skip
    return tiny.build(kind, config=config)


@contextlib.contextmanager
def record_warnings() -> Iterator[set[str]]:
    """Collect the messages of warnings, which ``python -W error`` would raise."""
    messages: set[str] = set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    messages |= {str(each.message) for each in caught}


def check_merging(pipe: Any, draw: Draw, *, begins_in_the_middle: bool = False) -> None:
    """Check a pipeline before, with and after ToMe.

    Half of the image's tokens merge where ToMe is said to be, nothing else changes, and removing it restores all. None
    of that warns of anything that the unmerged image does not, but of a scheduler with a history of noise. The first
    and the second half of the steps are told apart; of two steps an image that ``begins_in_the_middle`` has the second
    alone.
    """
    with count_queries(pipe) as unmerged, record_warnings() as known:
        plain = draw()
    assert np.isfinite(plain).all()
    blocks = {f"{part}.{block.path}": block for part, model in list_models(pipe) for block in find_blocks(model)}
    layers = {id(block.layer) for block in blocks.values()}
    beside = [
        model for _, model in list_models(pipe, denoisers_only=False) if layers.isdisjoint(map(id, model.sublayers()))
    ]
    before = [tiny.snapshot(model) for model in beside]

    with record_warnings() as caused:
        assert pipe.apply_tome(ratio=0.5) is pipe
        assert pipe.tome == get_tome(shared_copy(pipe).apply_tome(ratio=0.5))
    histories = {type(part).__name__ for part in vars(pipe).values()} & {*NOISE_HISTORIES}
    assert caused == {f"ToMe: {explain_noise_history(name)}" for name in histories}
    assert [tiny.snapshot(model) for model in beside] == before
    attached = {id(block) for _, model in list_models(pipe) for _, block, _ in list_attached_blocks(model)}
    assert attached <= {id(blocks[path].layer) for path in unmerged}
    assert len(attached) == sum(pipe.tome.blocks.values()) > 0
    with count_queries(pipe) as merging, record_warnings() as caused:
        merged = draw()
    assert caused <= known
    assert np.isfinite(merged).all()
    assert np.abs(merged - plain).max() > 1e-4
    for path, counts in unmerged.items():
        prefix = blocks[path].adapter.prefix(blocks[path].parent, None)
        halved = [count - int((count - prefix) * 0.5) for count in counts]
        assert merging[path] == (halved if id(blocks[path].layer) in attached else counts), path

    early, late = (calls_that_merge(pipe, draw, **half) for half in (dict(end=0.5), dict(start=0.5)))
    for denoiser, calls in early.items():
        assert calls == sorted(calls, reverse=True) == [not merges for merges in late[denoiser]], denoiser
    assert any(map(any, late.values()))
    assert any(map(any, early.values())) != begins_in_the_middle

    with record_warnings() as caused:
        pipe.remove_tome()
    assert caused == set()
    assert np.array_equal(draw(), plain)


def calls_that_merge(pipe: Any, draw: Draw, **settings: Any) -> dict[str, list[bool]]:
    """Return for each denoiser's calls whether tokens merge at ratio 0.5."""
    counts = count_merged(pipe.apply_tome(0.5, **settings), draw)
    return {name: [count > 0 for count in calls] for name, calls in counts.items()}


def count_merged(pipe: Any, draw: Draw) -> dict[str, list[int]]:
    """Return how many tokens of a frame merge in each call of each denoiser."""
    calls: dict[str, int] = dict.fromkeys(pipe.tome.blocks, 0)
    with record_merging(pipe) as records, contextlib.ExitStack() as stack:
        for name, model in list_models(pipe):
            if name in calls:

                def count(layer: Any, inputs: tuple, name: str = name) -> None:
                    calls[name] += 1

                stack.callback(model.register_forward_pre_hook(count).remove)
        draw()
    merged = {name: [0] * number for name, number in calls.items()}
    for record in records:
        merged[record.block.denoiser][record.call] = record.num_merged // record.grid.frames
    return merged

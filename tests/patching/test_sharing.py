"""``shared_copy``: one set of weights, two pipelines, and nothing of the one's ToMe in the other."""

from types import MethodType
from typing import Any

import numpy as np
import pytest
from paddle.nn import Layer
from ppdiffusers import DiffusionPipeline, StableDiffusionControlNetPipeline, StableDiffusionPipeline

import tiny
from patching.port import apply_port, remove_port
from ppdiffusers_tome import ToMeValueError, apply_tome, get_tome, shared_copy
from ppdiffusers_tome.patching.models import list_models

MERGED = dict(tiny.MERGE_ALL, reuse_steps=2)


def weights(pipe: Any) -> list[int]:
    """The very objects, by their numbers."""
    return [id(each) for _, model in list_models(pipe, denoisers_only=False) for each in model.parameters()]


@pytest.fixture
def pipe() -> StableDiffusionPipeline:
    return tiny.pipeline()


@pytest.fixture
def plain(pipe: StableDiffusionPipeline) -> np.ndarray:
    return tiny.run_pipeline(pipe)


class TestOfAPipeline:
    def test_has_the_very_weights_and_shares_all_but_denoisers_and_schedulers(self, pipe: Any) -> None:
        other = shared_copy(pipe)
        assert type(other) is type(pipe)
        assert weights(pipe) == weights(other) != []
        assert list(other.unet.state_dict()) == list(pipe.unet.state_dict())
        assert other.config == pipe.config
        mine, yours = pipe.components, other.components
        assert {name for name in mine if mine[name] is not yours[name]} == {"unet", "scheduler"}
        pipe.prior_text_encoder = pipe.text_encoder  # as Kandinsky's combined pipelines have it
        assert shared_copy(pipe).prior_text_encoder is pipe.text_encoder

    def test_each_draws_with_its_own_settings(self, pipe: Any, plain: np.ndarray) -> None:
        before, merged = tiny.snapshot(pipe.unet), tiny.run_pipeline(tiny.pipeline().apply_tome(**MERGED))
        other = shared_copy(pipe).apply_tome(**MERGED)
        assert tiny.snapshot(pipe.unet) == before
        assert np.abs(merged - plain).max() > 1e-3
        for drawing, expected in ((other, merged), (pipe, plain), (pipe, plain), (other, merged)):
            assert np.array_equal(tiny.run_pipeline(drawing), expected)
        pipe.apply_tome(**MERGED)
        before = tiny.snapshot(pipe.unet)
        for unmerged in (other.remove_tome(), shared_copy(pipe)):
            assert unmerged.tome is None
            assert tiny.snapshot(pipe.unet) == before
            assert np.array_equal(tiny.run_pipeline(unmerged), plain)
            assert np.array_equal(tiny.run_pipeline(pipe), merged)

    def test_ppdiffusers_port_stays_on_the_first_alone(self, pipe: Any, plain: np.ndarray) -> None:
        apply_port(pipe, ratio=0.5, use_rand=False)
        ported, before = tiny.run_pipeline(pipe), tiny.snapshot(pipe.unet)
        other = shared_copy(pipe)
        assert [hasattr(each.unet, "_tome_info") for each in (pipe, other)] == [True, False]
        assert weights(pipe) == weights(other) != []
        assert np.array_equal(tiny.run_pipeline(other), plain)
        assert tiny.snapshot(pipe.unet) == before
        assert np.array_equal(tiny.run_pipeline(pipe), ported)
        remove_port(pipe)

    @pytest.mark.parametrize("controlnet", [tiny.controlnet, tiny.multi_controlnet])
    def test_its_controlnets_are_its_own(self, controlnet: Any) -> None:
        pipe = tiny.pipeline(StableDiffusionControlNetPipeline, controlnet=controlnet())
        other = shared_copy(pipe).apply_tome(0.5)
        assert set(other.tome.blocks) == {"unet", "controlnet"}
        assert pipe.tome is None
        assert weights(pipe) == weights(other) != []


class Combined(DiffusionPipeline):
    """Draws with a pipeline of its own, as Kandinsky's combined ones do; and holds a model twice, also in a list."""

    def __init__(self, unet: Layer) -> None:
        super().__init__()
        self.register_modules(unet=unet)
        self.decoder_pipe = tiny.pipeline(unet=unet)
        self.several = [unet, "a word"]

    def __call__(self, **given: Any) -> Any:
        return self.decoder_pipe(**given)


def test_what_a_pipeline_holds_twice_the_copy_holds_twice() -> None:
    pipe = Combined(tiny.unet())
    plain = tiny.run_pipeline(pipe)
    other = shared_copy(pipe)
    assert other.unet is other.decoder_pipe.unet is other.several[0] is not pipe.unet
    assert other.decoder_pipe.vae is pipe.decoder_pipe.vae
    assert np.abs(tiny.run_pipeline(apply_tome(other, **MERGED)) - plain).max() > 1e-3
    assert np.array_equal(tiny.run_pipeline(pipe), plain)
    assert get_tome(pipe.decoder_pipe) is None


def test_a_pipeline_in_a_pipeline_shares_its_weights_too() -> None:
    pipe = Combined(tiny.unet())
    pipe.decoder_pipe = tiny.pipeline()
    other = shared_copy(pipe)
    assert other.decoder_pipe.unet is not pipe.decoder_pipe.unet
    assert weights(pipe.decoder_pipe) == weights(other.decoder_pipe) != []
    pipe.decoder_pipe.unet.conv_in.forward = lambda x: x
    with pytest.raises(ToMeValueError, match=r"conv_in of \w+ has a replaced forward"):
        shared_copy(pipe)


@pytest.mark.parametrize(("build", "run"), [(tiny.dit, tiny.run_dit), (tiny.sdxl_unet, tiny.run_unet)])
def test_of_a_model(build: Any, run: Any) -> None:
    model = build()
    plain = run(model)
    other = shared_copy(model)
    assert np.array_equal(run(other), plain)
    expected = run(apply_tome(build(), 0.5))
    assert np.array_equal(run(apply_tome(other, 0.5)), expected)
    assert np.array_equal(run(model), plain)


def test_a_method_in_place_of_forward_becomes_the_copys(pipe: Any, plain: np.ndarray) -> None:
    seen: list[Any] = []

    def forward(self: Any, *given: Any, **named: Any) -> Any:
        seen.append(self)
        return type(self).forward(self, *given, **named)

    pipe.unet.forward = MethodType(forward, pipe.unet)
    other = shared_copy(pipe)
    assert np.array_equal(tiny.run_pipeline(other), plain)
    assert {id(each) for each in seen} == {id(other.unet)}

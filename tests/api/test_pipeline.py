"""ToMe on pipelines: every denoiser is reached, nothing else is, and the ways of asking for it agree."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ppdiffusers import StableDiffusionControlNetPipeline, StableDiffusionPipeline

import ppdiffusers_tome
import tiny
from ppdiffusers_tome import ToMeConfig, ToMeMixin, ToMeValueError, apply_tome, get_tome, remove_tome, use_tome


@pytest.fixture
def pipe() -> Any:
    return tiny.pipeline()


def control_pipeline(controlnet: Any) -> Any:
    return tiny.pipeline(StableDiffusionControlNetPipeline, controlnet=controlnet)


def test_unets_in_a_list_are_all_reached() -> None:
    pipe = tiny.Models(tiny.unet(), tiny.unet())
    before = [tiny.snapshot(unet) for unet in pipe.models]
    plain = tiny.run_unet(pipe.models[0])
    assert pipe.apply_tome(0.5) is pipe
    assert dict(pipe.tome.blocks) == {"models[0]": 3, "models[1]": 3}
    outputs = [tiny.run_unet(unet) for unet in pipe.models]
    assert np.array_equal(*outputs)
    assert np.abs(outputs[0] - plain).max() > 1e-3
    pipe.remove_tome()
    assert [tiny.snapshot(unet) for unet in pipe.models] == before


def test_a_unet_in_two_places_is_attached_once() -> None:
    unet = tiny.unet()
    expected = tiny.run_unet(apply_tome(tiny.unet(), 0.5))
    pipe = tiny.Models(unet, unet).apply_tome(0.5)
    assert sum(pipe.tome.blocks.values()) == 3
    assert np.array_equal(tiny.run_unet(unet), expected)


class TestDifferentSettings:
    """Denoisers may each have settings of their own; nothing speaks for all of them then."""

    FIRST = "down_blocks.0.attentions.0.transformer_blocks.0"
    LAST = tuple(f"up_blocks.1.attentions.{number}.transformer_blocks.0" for number in (0, 1))

    @staticmethod
    def entries(model_or_pipe: Any) -> list[tuple[str, ToMeConfig, tuple[str, ...]]]:
        return [(each.denoiser, each.config, each.paths) for each in get_tome(model_or_pipe).entries]

    def test_of_denoisers(self) -> None:
        pipe = control_pipeline(tiny.controlnet())
        pipe.unet.apply_tome(0.5)
        pipe.controlnet.apply_tome(0.3, method="todo")
        tomes = ToMeConfig(0.5), ToMeConfig(0.3, method="todo")
        assert self.entries(pipe) == [
            ("unet", tomes[0], (self.FIRST, *self.LAST)),
            ("controlnet", tomes[1], (self.FIRST,)),
        ]
        assert pipe.tome.blocks == {"unet": 3, "controlnet": 1}
        words = "unet has ratio 0.5 in 3 blocks; controlnet has ratio 0.3, method todo in 1 block"
        with pytest.raises(ToMeValueError, match=rf"no single config, as settings differ: {words}\. Look at \.entries"):
            _ = pipe.tome.config
        assert (pipe.unet.tome.config, pipe.controlnet.tome.config) == tomes
        assert str(pipe.tome) == words
        remove_tome(pipe.unet)
        assert (pipe.tome.config, pipe.tome.blocks) == (tomes[1], {"controlnet": 1})
        assert str(pipe.controlnet.apply_tome("balanced").tome).startswith("the model has preset balanced")

    def test_of_one_of_two_controlnets(self) -> None:
        pipe = control_pipeline(tiny.multi_controlnet())
        pipe.controlnet.nets[1].apply_tome(0.3)
        assert self.entries(pipe) == [("controlnet", ToMeConfig(0.3), (f"nets.1.{self.FIRST}",))]
        pipe.controlnet.nets[0].apply_tome(0.5)
        assert pipe.tome.blocks == {"controlnet": 2}
        with pytest.raises(ToMeValueError, match="there is no single config"):
            _ = pipe.tome.config


def test_mixin_gives_a_class_its_methods() -> None:
    class MyPipeline(ToMeMixin, StableDiffusionPipeline):
        pass

    assert MyPipeline.apply_tome is ToMeMixin.apply_tome
    pipe = tiny.pipeline(MyPipeline)
    assert pipe.apply_tome(0.4) is pipe
    assert pipe.tome.config.ratio == 0.4
    assert pipe.remove_tome() is pipe
    assert pipe.tome is None


def test_every_name_of_the_package_is_there() -> None:
    for name in ppdiffusers_tome.__all__:
        assert getattr(ppdiffusers_tome, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'aply_tome'"):
        ppdiffusers_tome.aply_tome  # noqa: B018


class TestForOneRequest:
    def test_what_was_applied_before_is_applied_again(self) -> None:
        pipe = control_pipeline(tiny.controlnet())
        pipe.controlnet.apply_tome(0.3, method="keys")
        apply_tome(pipe.unet, 0.25, seed=3)
        given = dict(image=tiny.array((1, 3, 32, 32)))
        before, applied = tiny.run_pipeline(pipe, **given), pipe.tome
        with use_tome(pipe, "balanced", seed=1) as merged:
            assert merged is pipe
            assert pipe.tome.config == replace(ToMeConfig.preset("balanced"), seed=1)
            assert not np.array_equal(tiny.run_pipeline(pipe, **given), before)
        assert pipe.tome == applied
        assert np.array_equal(tiny.run_pipeline(pipe, **given), before)

    @pytest.mark.parametrize("ratio", [None, 0.3])
    def test_also_after_an_error(self, pipe: Any, ratio: float | None) -> None:
        plain = tiny.snapshot(pipe.unet)
        if ratio is not None:
            pipe.apply_tome(ratio)
        applied = pipe.tome
        with pytest.raises(RuntimeError), use_tome(pipe, 0.6):
            raise RuntimeError
        assert pipe.tome == applied
        with pytest.raises(ToMeValueError), use_tome(pipe, 2.0):
            pass
        assert pipe.tome == applied
        assert tiny.snapshot(remove_tome(pipe).unet) == plain

    def test_it_may_be_within_another(self, pipe: Any) -> None:
        with use_tome(pipe, 0.3):
            with use_tome(pipe, 0.6):
                assert pipe.tome.config.ratio == 0.6
            assert pipe.tome.config.ratio == 0.3
        assert pipe.tome is None

"""How far a denoising is: told by the scheduler of the pipeline, whatever the denoiser is given for a timestep."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest

import tiny
from pipelines import test_images as images
from pipelines import test_transformers as transformers
from pipelines import test_video_audio as videos
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.patching.recorder import record_merging
from zoo import unidiffuser
from zoo.specimen import Inputs, untouched_random_state

Drawing = Callable[[], Any]


def build_images(make: Callable[[], images.Made], folder: Path) -> tuple[Any, Drawing]:
    pipe, call = make()
    return pipe, lambda: images.run(pipe, call)


def build_transformers(case: transformers.Case, folder: Path) -> tuple[Any, Drawing]:
    pipe = case.build(folder)
    return pipe, lambda: case.run(pipe)


def build_videos(builder: Callable[[Path], videos.Ready], folder: Path) -> tuple[Any, Drawing]:
    pipe, call = builder(folder)
    return pipe, lambda: videos.numbers(call)


PIPELINES: dict[str, Callable[[Path], tuple[Any, Drawing]]] = {
    **{name: partial(build_images, make) for name, make in images.CASES.items()},
    **{name: partial(build_transformers, case) for name, case in transformers.CASES.items()},
    **{each.__name__: partial(build_videos, each) for each in videos.BUILDERS if callable(each)},
}
# Of two steps the second alone: they begin with a picture that is noised halfway.
BEGIN_IN_THE_MIDDLE = (
    "img2img", "inpaint_legacy", "depth2img", "cycle", "controlnet_img2img", "sdxl_refiner", "sdxl_inpaint",
    "sdxl_controlnet_img2img", "deepfloyd_if_img2img", "video_to_video",
)  # fmt: skip
# Pipelines that have another one's denoiser, scheduler and way to begin, or nearly so. `make test-all` runs them too.
LIKE_OTHERS = (
    "inpaint_legacy", "instruct_pix2pix", "depth2img", "latent_consistency_img2img", "gligen_boxes", "ip_adapter",
    "adapter", "controlnet_inpaint", "sdxl_inpaint", "sdxl_instruct_pix2pix", "sdxl_controlnet_img2img", "sdxl_adapter",
    "deepfloyd_if_super_resolution", "kandinsky_v22_img2img", "ldm_uncond", "PaintByExamplePipeline",
    "StableDiffusion3Img2ImgPipeline", "VersatileDiffusionTextToImagePipeline", "WuerstchenDecoderPipeline",
    "LDMTextToImagePipeline", "animatediff", "image_to_video", "music_ldm", "audio_ldm",
    "spectrograms",  # and the first time that sound is made of them, code is compiled for half a minute
)  # fmt: skip


def merging_calls(pipe: Any, draw: Drawing, **settings: Any) -> tuple[dict[str, int], dict[str, list[int]]]:
    """How often each denoiser is called, and in which of its calls something merges."""
    pipe.apply_tome(0.5, **settings)
    calls: dict[str, int] = {}
    hooks = []
    for name, model in list_models(pipe):
        if name in pipe.tome.blocks:

            def count(layer: Any, inputs: tuple, name: str = name) -> None:
                calls[name] = calls.get(name, 0) + 1

            hooks.append(model.register_forward_pre_hook(count))
    with record_merging(pipe) as records:
        draw()
    for hook in hooks:
        hook.remove()
    return calls, {name: sorted({each.call for each in records if each.block.denoiser == name}) for name in calls}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[*[pytest.mark.sweep] * (name in LIKE_OTHERS), *transformers.skip_marks(name)])
        for name in PIPELINES
    ],
)
def test_the_first_and_the_second_half_of_the_steps_are_told_apart(name: str, tmp_path: Path) -> None:
    pipe, draw = PIPELINES[name](tmp_path)
    calls, early = merging_calls(pipe, draw, end=0.5)
    _, late = merging_calls(pipe, draw, start=0.5)
    assert calls
    for denoiser, number in calls.items():
        assert early[denoiser] + late[denoiser] == list(range(number)), denoiser
    assert any(late.values())
    assert any(early.values()) == (name not in BEGIN_IN_THE_MIDDLE)


def tokens_by_step(pipe: Any, steps: int, attention: str = "attn1", **given: Any) -> list[int]:
    """The tokens that the first self-attention sees in each call."""
    seen: list[int] = []
    layer = pipe.unet.down_blocks[0].attentions[0].transformer_blocks[0].attn1.to_q
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    tiny.run_pipeline(pipe, steps=steps, **given)
    hook.remove()
    return seen


def ramp(start: float, stop: float, progress: list[float]) -> list[int]:
    return [256 - int(256 * (start + (stop - start) * each)) for each in progress]


@pytest.mark.parametrize(
    ("scheduler", "progress"),
    [
        (dict(cls="DDIMScheduler"), [0, 0.25, 0.5, 0.75]),
        (dict(cls="EulerDiscreteScheduler", use_karras_sigmas=True), [0, 0.25, 0.5, 0.75]),
        # Lists of second order name a timestep twice; there, it is the second call of the same step.
        (dict(cls="HeunDiscreteScheduler"), [0, 1 / 7, 2 / 7, 3 / 7, 4 / 7, 5 / 7, 6 / 7]),
        (dict(cls="PNDMScheduler", skip_prk_steps=True), [0, 0.2, 0.4, 0.6, 0.8]),
        (dict(cls="DPMSolverMultistepScheduler"), [0, 0.25, 0.5, 0.75]),
    ],
    ids=lambda value: value["cls"] if isinstance(value, dict) else "",
)
def test_a_ramp_follows_the_place_in_the_schedule(scheduler: dict[str, Any], progress: list[float]) -> None:
    settings = dict(scheduler)
    pipe = tiny.pipeline(scheduler=getattr(ppdiffusers, settings.pop("cls"))(**settings))
    pipe.apply_tome((0.7, 0.1))
    assert tokens_by_step(pipe, 4) == ramp(0.7, 0.1, progress)


def test_a_scheduler_that_is_replaced_between_calls_is_followed() -> None:
    pipe = tiny.pipeline().apply_tome((0.7, 0.1))
    assert tokens_by_step(pipe, 4) == ramp(0.7, 0.1, [0, 0.25, 0.5, 0.75])
    pipe.scheduler = ppdiffusers.HeunDiscreteScheduler()
    assert tokens_by_step(pipe, 2) == ramp(0.7, 0.1, [0, 1 / 3, 2 / 3])
    pipe.scheduler = tiny.scheduler()
    assert tokens_by_step(pipe, 2) == ramp(0.7, 0.1, [0, 0.5])


def test_continuous_timesteps_of_video_diffusion(tmp_path: Path) -> None:
    """They run from 1.64 to -1.55: read as thousandths, all of them would be the end of the denoising."""
    pipe, draw = build_videos(videos.stable_video_diffusion, tmp_path)
    sigmas = np.geomspace(700, 0.002, 2)

    class Continuous(ppdiffusers.EulerDiscreteScheduler):
        def set_timesteps(self, num_inference_steps: int, **given: Any) -> None:
            super().set_timesteps(num_inference_steps, **given)
            self.timesteps = paddle.to_tensor(0.25 * np.log(sigmas), dtype="float32")

    pipe.scheduler = Continuous(prediction_type="v_prediction")
    calls, early = merging_calls(pipe, draw, end=0.5)
    assert calls == {"unet": 2}
    assert early == {"unet": [0]}
    assert merging_calls(pipe, draw, start=0.5)[1] == {"unet": [1]}


def test_each_denoiser_of_unclip_is_told_by_the_scheduler_that_is_called_like_it() -> None:
    """All three begin with the same timestep."""
    pipe, call = images.unclip()
    call |= dict(prior_num_inference_steps=4, decoder_num_inference_steps=4, super_res_num_inference_steps=3)
    calls, early = merging_calls(pipe, lambda: images.run(pipe, call), end=0.7)
    assert calls == {"decoder": 4, "super_res_first": 2, "super_res_last": 1}
    assert early == {"decoder": [0, 1, 2], "super_res_first": [0, 1], "super_res_last": [0]}


@pytest.mark.parametrize("numbers", [False, True], ids=["tensors", "numbers"])
@pytest.mark.parametrize("other", [0, 1000, None], ids=["finished", "noise", "both"])
@pytest.mark.parametrize("picture", [True, False], ids=["picture", "text"])
def test_unidiffuser_is_told_by_what_it_denoises(picture: bool, other: int | None, numbers: bool) -> None:
    """It is given two timesteps; of what stays as it is, pipelines say 0 or the highest."""
    model = apply_tome(unidiffuser.SPECIMEN.build(), 0.5, start=0.5)

    def merges(timestep: int) -> bool:
        inputs = Inputs(timestep=timestep)
        told = timestep if numbers else inputs.timesteps
        still = told if other is None else other
        image, text = (told, still) if picture else (still, told)
        with paddle.no_grad(), record_merging(model) as records:
            model(
                latent_image_embeds=inputs.picture(4), image_embeds=inputs.normal(1, unidiffuser.IMAGE_DIM, seed=2),
                prompt_embeds=inputs.text(seed=3), timestep_img=image, timestep_text=text,
            )  # fmt: skip
        return bool(records)

    assert [merges(timestep) for timestep in (900, 501, 500, 100)] == [False, False, True, True]


def test_the_settings_of_a_part_that_a_pipeline_holds_are_told_too() -> None:
    """``pipe.unet.apply_tome`` knows no pipeline; the pipeline's call does."""
    pipe = tiny.pipeline(scheduler=ppdiffusers.EulerDiscreteScheduler(use_karras_sigmas=True))
    pipe.unet.apply_tome((0.7, 0.1))
    assert tokens_by_step(pipe, 4) == ramp(0.7, 0.1, [0, 0.25, 0.5, 0.75])


def test_two_pipelines_that_share_a_unet_are_each_told_by_their_own_scheduler() -> None:
    pipe = tiny.pipeline().apply_tome((0.7, 0.1))
    other = tiny.pipeline(unet=pipe.unet, scheduler=ppdiffusers.HeunDiscreteScheduler())
    assert tokens_by_step(pipe, 2) == ramp(0.7, 0.1, [0, 0.5])
    assert tokens_by_step(other, 2) == ramp(0.7, 0.1, [0, 1 / 3, 2 / 3])
    assert tokens_by_step(pipe, 2) == ramp(0.7, 0.1, [0, 0.5])


class TestABareDenoiser:
    def test_its_timesteps_tell(self) -> None:
        unet = apply_tome(tiny.unet(), 0.5, end=0.5)
        plain = tiny.unet()
        for timestep, merges in ((999, True), (501, True), (499, False), (0, False)):
            same = np.array_equal(tiny.run_unet(unet, timestep=timestep), tiny.run_unet(plain, timestep=timestep))
            assert same != merges, timestep

    @pytest.mark.parametrize("timestep", [-1.55, 1500.0])
    def test_those_that_cannot_tell_are_said_once(self, timestep: float) -> None:
        unet, plain = apply_tome(tiny.unet(), 0.5, end=0.5), tiny.unet()
        step = paddle.to_tensor([timestep, timestep])
        sentence = "outside 0 to 1000.*runs unmerged; call it through its pipeline"
        with pytest.warns(UserWarning, match=sentence) as caught:
            outputs = [tiny.run_unet(unet, timestep=step) for _ in range(2)]
        assert len([each for each in caught if "ToMe" in str(each.message)]) == 1
        assert all(np.array_equal(output, tiny.run_unet(plain, timestep=step)) for output in outputs)

    def test_one_ratio_needs_no_timestep_to_tell(self, recwarn: pytest.WarningsRecorder) -> None:
        unet = apply_tome(tiny.unet(), 0.5)
        tiny.run_unet(unet, timestep=paddle.to_tensor([-1.55, -1.55]))
        assert not [each for each in recwarn if "ToMe" in str(each.message)]


class TestReuseInAPipeline:
    def count_matchings(self, pipe: Any, monkeypatch: pytest.MonkeyPatch, **given: Any) -> list[int]:
        """Matchings made in each call of the UNet."""
        from ppdiffusers_tome.patching.state import reducer

        counts: list[int] = []
        real = reducer.build_matcher

        def counting(*args: Any, **given: Any) -> Any:
            match = real(*args, **given)

            def count_and_match(x: paddle.Tensor) -> Any:
                counts[-1] += 1
                return match(x)

            return count_and_match

        monkeypatch.setattr(reducer, "build_matcher", counting)
        hook = pipe.unet.register_forward_pre_hook(lambda layer, inputs: counts.append(0))
        tiny.run_pipeline(pipe, **given)
        hook.remove()
        monkeypatch.undo()
        return counts

    def test_only_the_first_of_n_steps_is_fresh(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The second step needs no guess here."""
        pipe = tiny.pipeline().apply_tome(0.5, reuse_steps=3, reuse_blocks=True)
        assert self.count_matchings(pipe, monkeypatch, steps=7) == [1, 0, 0, 1, 0, 0, 1]

    @pytest.mark.parametrize("scheduler", ["HeunDiscreteScheduler", "PNDMScheduler", "LMSDiscreteScheduler"])
    def test_calls_of_second_order_are_steps(self, scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
        pipe = tiny.pipeline(scheduler=getattr(ppdiffusers, scheduler)())
        counts = self.count_matchings(pipe.apply_tome(0.5, reuse_steps=3, reuse_blocks=True), monkeypatch, steps=4)
        assert counts == ([1, 0, 0] * 10)[: len(counts)]

    def test_a_cancelled_picture_leaves_nothing_to_the_next(self) -> None:
        class CancelledError(Exception):
            pass

        def cancel(pipe: Any, step: int, *_: Any) -> dict[str, Any]:
            if step == 2:
                raise CancelledError
            return {}

        settings = dict(ratio=0.5, reuse_steps=10, reuse_blocks=True)
        pipe = tiny.pipeline().apply_tome(**settings)
        expected = tiny.run_pipeline(apply_tome(tiny.pipeline(), **settings), steps=6, guidance_scale=3.0)
        with pytest.raises(CancelledError):
            tiny.run_pipeline(pipe, steps=6, callback_on_step_end=cancel)
        assert np.array_equal(tiny.run_pipeline(pipe, steps=6, guidance_scale=3.0), expected)

    def test_img2img_begins_in_the_middle_with_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with untouched_random_state():
            pipe, call = images.img2img()
            pipe.apply_tome(0.5, reuse_steps=10)
            first = images.run(pipe, {**call, "num_inference_steps": 10, "strength": 0.5})
            assert np.array_equal(images.run(pipe, {**call, "num_inference_steps": 10, "strength": 0.5}), first)

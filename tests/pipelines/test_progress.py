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
from patching.contract import count_matchings, count_queries
from pipelines import test_images as images
from pipelines import test_transformers as transformers
from pipelines import test_video_audio as videos
from pipelines.whole import Draw, count_merged
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.patching.recorder import record_merging
from zoo import sd3, unidiffuser
from zoo.specimen import Inputs

PIPELINES: dict[str, Callable[[Path], tuple[Any, Draw]]] = {
    **{name: partial(images.start, make) for name, make in images.CASES.items()},
    **{name: case.start for name, case in transformers.CASES.items()},
    **{name: start for name, start in videos.CASES.items() if name == "spectrograms" or name not in videos.MARKS},
}
# Of two steps the second alone: they begin with an image that is noised halfway.
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


def calls_that_merge(pipe: Any, draw: Draw, **settings: Any) -> dict[str, list[bool]]:
    counts = count_merged(pipe.apply_tome(0.5, **settings), draw)
    return {name: [count > 0 for count in calls] for name, calls in counts.items()}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[*[pytest.mark.sweep] * (name in LIKE_OTHERS), *transformers.skip_marks(name)])
        for name in PIPELINES
    ],
)
def test_the_first_and_the_second_half_of_the_steps_are_told_apart(name: str, tmp_path: Path) -> None:
    pipe, draw = PIPELINES[name](tmp_path)
    early, late = (calls_that_merge(pipe, draw, **half) for half in (dict(end=0.5), dict(start=0.5)))
    for denoiser, calls in early.items():
        assert calls == sorted(calls, reverse=True) == [not merges for merges in late[denoiser]], denoiser
    assert any(map(any, late.values()))
    assert any(map(any, early.values())) == (name not in BEGIN_IN_THE_MIDDLE)


def tokens_by_step(pipe: Any, steps: int) -> list[int]:
    with count_queries(pipe) as counts:
        tiny.run_pipeline(pipe, steps=steps)
    return counts["unet.down_blocks.0.attentions.0.transformer_blocks.0"]


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
    pipe.unet.apply_tome((0.7, 0.1))  # which knows no pipeline; the pipeline's call does
    assert tokens_by_step(pipe, 4) == ramp(0.7, 0.1, progress)


@pytest.mark.parametrize("shared", [False, True])
def test_a_scheduler_that_is_replaced_or_that_of_another_pipeline_with_the_unet_is_followed(shared: bool) -> None:
    pipe = tiny.pipeline().apply_tome((0.7, 0.1))
    other = tiny.pipeline(unet=pipe.unet) if shared else pipe
    assert tokens_by_step(pipe, 4) == ramp(0.7, 0.1, [0, 0.25, 0.5, 0.75])
    other.scheduler = ppdiffusers.HeunDiscreteScheduler()
    assert tokens_by_step(other, 2) == ramp(0.7, 0.1, [0, 1 / 3, 2 / 3])
    pipe.scheduler = tiny.scheduler()
    assert tokens_by_step(pipe, 2) == ramp(0.7, 0.1, [0, 0.5])


def test_continuous_timesteps_of_video_diffusion(tmp_path: Path) -> None:
    """They run from 1.64 to -1.55: read as thousandths, all of them would be the end of the denoising."""
    pipe, draw = videos.CASES["stable_video_diffusion"](tmp_path)
    sigmas = np.geomspace(700, 0.002, 2)

    class Continuous(ppdiffusers.EulerDiscreteScheduler):
        def set_timesteps(self, num_inference_steps: int, **given: Any) -> None:
            super().set_timesteps(num_inference_steps, **given)
            self.timesteps = paddle.to_tensor(0.25 * np.log(sigmas), dtype="float32")

    pipe.scheduler = Continuous(prediction_type="v_prediction")
    assert calls_that_merge(pipe, draw, end=0.5) == {"unet": [True, False]}
    assert calls_that_merge(pipe, draw, start=0.5) == {"unet": [False, True]}


def test_each_denoiser_of_unclip_is_told_by_the_scheduler_that_is_called_like_it() -> None:
    """All three begin with the same timestep."""
    pipe, call = images.unclip()
    call |= dict(prior_num_inference_steps=4, decoder_num_inference_steps=4, super_res_num_inference_steps=3)
    assert calls_that_merge(pipe, lambda: images.run(pipe, call), end=0.7) == {
        "decoder": [True] * 3 + [False], "super_res_first": [True] * 2, "super_res_last": [True]
    }  # fmt: skip


@pytest.mark.parametrize("numbers", [False, True], ids=["tensors", "numbers"])
@pytest.mark.parametrize("other", [0, 1000, None], ids=["finished", "noise", "both"])
@pytest.mark.parametrize("is_image", [True, False], ids=["image", "text"])
def test_unidiffuser_is_told_by_what_it_denoises(is_image: bool, other: int | None, numbers: bool) -> None:
    """It is given two timesteps; of what stays as it is, pipelines say 0 or the highest."""
    model = apply_tome(unidiffuser.SPECIMEN.build(), 0.5, start=0.5)

    def merges(timestep: int) -> bool:
        inputs = Inputs(timestep=timestep)
        told = timestep if numbers else inputs.timesteps
        still = told if other is None else other
        image, text = (told, still) if is_image else (still, told)
        with paddle.no_grad(), record_merging(model) as records:
            model(
                latent_image_embeds=inputs.image(4), image_embeds=inputs.normal(1, unidiffuser.IMAGE_DIM, seed=2),
                prompt_embeds=inputs.text(seed=3), timestep_img=image, timestep_text=text,
            )  # fmt: skip
        return bool(records)

    assert [merges(timestep) for timestep in (900, 501, 500, 100)] == [False, False, True, True]


@pytest.mark.filterwarnings("error:ToMe")
@pytest.mark.parametrize("settings", [dict(start=0.5), dict(end=0.5)])
def test_an_image_that_a_callback_ends_tells_nothing_of_start_and_end(settings: dict[str, Any], tmp_path: Path) -> None:
    case = transformers.CASES["StableDiffusion3Pipeline"]
    pipe = apply_tome(case.build(tmp_path), 0.5, **settings)

    def interrupt(pipe: Any, number: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        pipe._interrupt = number >= 1
        return kwargs

    with sd3.attention_anywhere(), paddle.no_grad():
        pipe(**case.call, num_inference_steps=8, callback_on_step_end=interrupt)


class TestABareDenoiser:
    @pytest.mark.parametrize("timestep", [-1.55, 1500.0])
    def test_those_that_cannot_tell_are_said_once(self, timestep: float) -> None:
        unet, plain = apply_tome(tiny.unet(), 0.5, end=0.5), tiny.unet()
        step = paddle.to_tensor([timestep, timestep])
        sentence = "outside 0 to 1000.*runs unmerged; call the model through a pipeline.*if you replaced"
        with pytest.warns(UserWarning, match=sentence) as caught:
            outputs = [tiny.run_unet(unet, timestep=step) for _ in range(2)]
        assert len([each for each in caught if "ToMe" in str(each.message)]) == 1
        assert all(np.array_equal(output, tiny.run_unet(plain, timestep=step)) for output in outputs)

    def test_one_ratio_needs_no_timestep_to_tell(self, recwarn: pytest.WarningsRecorder) -> None:
        unet = apply_tome(tiny.unet(), 0.5)
        tiny.run_unet(unet, timestep=paddle.to_tensor([-1.55, -1.55]))
        assert not [each for each in recwarn if "ToMe" in str(each.message)]


class TestReuseInAPipeline:
    @pytest.mark.parametrize("scheduler", ["DDIM", "HeunDiscrete", "PNDM", "LMSDiscrete"])
    def test_only_the_first_of_n_calls_is_fresh(self, scheduler: str) -> None:
        """The second call needs no guess here, and calls of second order are steps."""
        pipe = tiny.pipeline(scheduler=getattr(ppdiffusers, f"{scheduler}Scheduler")())
        pipe.apply_tome(0.5, reuse_steps=3)
        with count_matchings(pipe.unet) as counts:
            tiny.run_pipeline(pipe, steps=7)
        assert counts == ([3, 0, 0] * 10)[: len(counts)]
        assert len(counts) >= 7

"""How far a denoising is: told by the scheduler of the pipeline, whatever the denoiser is given for a timestep."""

from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest

import tiny
from patching.helpers import count_queries
from pipelines import images, videos
from pipelines.whole import calls_that_merge, draw, make_pipeline
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.tools.recorder import record_merging
from zoo import unidiffuser
from zoo.specimen import Inputs


def tokens_by_step(pipe: Any, steps: int) -> list[int]:
    with count_queries(pipe) as counts:
        tiny.run_pipeline(pipe, steps=steps)
    return counts["unet.down_blocks.0.attentions.0.transformer_blocks.0"]


def ramp(start: float, stop: float, progress: list[float]) -> list[int]:
    return [256 - int(256 * (start + (stop - start) * each)) for each in progress]


@pytest.mark.parametrize(
    ("scheduler", "progress"),
    [
        (ppdiffusers.DDIMScheduler(), [0, 0.25, 0.5, 0.75]),
        (ppdiffusers.EulerDiscreteScheduler(use_karras_sigmas=True), [0, 0.25, 0.5, 0.75]),
        # Lists of second order name a timestep twice; there, it is the second call of the same step.
        (ppdiffusers.HeunDiscreteScheduler(), [0, 1 / 7, 2 / 7, 3 / 7, 4 / 7, 5 / 7, 6 / 7]),
        (ppdiffusers.PNDMScheduler(skip_prk_steps=True), [0, 0.2, 0.4, 0.6, 0.8]),
        (ppdiffusers.DPMSolverMultistepScheduler(), [0, 0.25, 0.5, 0.75]),
    ],
    ids=lambda value: "" if isinstance(value, list) else type(value).__name__,
)
def test_a_ramp_follows_the_place_in_the_schedule(scheduler: Any, progress: list[float]) -> None:
    pipe = tiny.pipeline(scheduler=scheduler)
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


def test_continuous_timesteps_of_video_diffusion() -> None:
    """They run from 1.64 to -1.55: read as thousandths, all of them would be the end of the denoising."""
    pipe, draw = make_pipeline(videos.stable_video_diffusion)
    pipe.scheduler = ppdiffusers.EulerDiscreteScheduler(
        prediction_type="v_prediction", timestep_type="continuous", use_karras_sigmas=True, sigma_min=0.002,
        sigma_max=700,
    )  # fmt: skip
    assert calls_that_merge(pipe, draw, end=0.5) == {"unet": [True, False]}
    assert calls_that_merge(pipe, draw, start=0.5) == {"unet": [False, True]}


def test_each_denoiser_of_unclip_is_told_by_the_scheduler_that_is_called_like_it() -> None:
    """All three begin with the same timestep."""
    pipe, call = images.unclip()
    call |= dict(prior_num_inference_steps=4, decoder_num_inference_steps=4, super_res_num_inference_steps=3)
    assert calls_that_merge(pipe, lambda: draw(pipe, call), end=0.7) == {
        "decoder": [True] * 3 + [False], "super_res_first": [True] * 2, "super_res_last": [True]
    }  # fmt: skip


@pytest.mark.parametrize("other", [0, None], ids=["finished text", "both"])
def test_unidiffuser_is_told_by_the_timestep_of_its_image(other: int | None) -> None:
    model = apply_tome(unidiffuser.SPECIMEN.build(), 0.5, start=0.5)

    def merges(timestep: int) -> bool:
        inputs = Inputs(timestep=timestep)
        text = inputs.timesteps if other is None else other
        with paddle.no_grad(), record_merging(model) as records:
            model(
                latent_image_embeds=inputs.image(4), image_embeds=inputs.normal(1, unidiffuser.IMAGE_DIM, seed=2),
                prompt_embeds=inputs.text(seed=3), timestep_img=inputs.timesteps, timestep_text=text,
            )  # fmt: skip
        return bool(records)

    assert [merges(timestep) for timestep in (900, 501, 500, 100)] == [False, False, True, True]


@pytest.mark.filterwarnings("error:ToMe")
@pytest.mark.parametrize("settings", [dict(start=0.5), dict(end=0.5)])
def test_an_image_that_a_callback_ends_tells_nothing_of_start_and_end(settings: dict[str, Any]) -> None:
    pipe, call = images.stable_diffusion_3()

    def interrupt(pipe: Any, number: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        pipe._interrupt = number >= 1
        return kwargs

    draw(apply_tome(pipe, 0.5, **settings), dict(call, num_inference_steps=8, callback_on_step_end=interrupt))


@pytest.mark.parametrize("timestep", [-1.55, 1500.0])
def test_timesteps_of_a_bare_denoiser_that_tell_nothing_are_said_once(timestep: float) -> None:
    unet, plain = apply_tome(tiny.unet(), 0.5, end=0.5), tiny.unet()
    step = paddle.to_tensor([timestep, timestep])
    sentence = "without a pipeline, outside 0 to 1000.*runs unmerged; call the model.*if you replaced"
    with pytest.warns(UserWarning, match=sentence) as caught:
        # The last has one ratio, which needs no timestep to tell.
        *outputs, _ = [tiny.run_unet(model, timestep=step) for model in (unet, unet, apply_tome(tiny.unet(), 0.5))]
    assert len([each for each in caught if "ToMe" in str(each.message)]) == 1
    assert all(np.array_equal(output, tiny.run_unet(plain, timestep=step)) for output in outputs)

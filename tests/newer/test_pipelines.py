"""Pipelines of the newest families, whole: they merge, follow their schedule, and come back once removed."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest
from ppdiffusers import transformers

import tiny
from newer.families import NEWEST, THERE, lacking, parametrize_specimens
from patching.helpers import count_matchings
from pipelines.whole import build_pipeline, count_merged, image_encoder, load_tokenizer
from ppdiffusers_tome.tools.recorder import record_merging
from zoo import Specimen, flux, sd3, wan_image
from zoo import hunyuan_video as hunyuan
from zoo.specimen import keep_random_state, kernels_anywhere

STEPS = 4
# Grids of 6x8 tokens, of three frames where there are any.
IMAGE = dict(height=24, width=32)
VIDEO = dict(height=96, width=128, num_frames=9)


def scheduler(**settings: Any) -> Any:
    """Of flow matching, shifted as FLUX and Wan have it."""
    return ppdiffusers.FlowMatchEulerDiscreteScheduler(shift=3.0, **settings)


def an_image(*, seed: int = 1) -> paddle.Tensor:
    return tiny.smooth_image(1, 3, IMAGE["height"], IMAGE["width"], seed=seed).clip(0, 1)


def build_flux(name: str, **config: Any) -> Any:
    return build_pipeline(
        name, scheduler=scheduler(use_dynamic_shifting=True), vae=tiny.vae(shift_factor=0.1),
        tokenizer=load_tokenizer(), transformer=flux.SPECIMEN.build(**{"in_channels": 16, **config}),
    )  # fmt: skip


def call_flux(**given: Any) -> dict[str, Any]:
    return dict(prompt_embeds=tiny.text(1), pooled_prompt_embeds=tiny.array((1, flux.POOLED_DIM)), **IMAGE, **given)


def build_flux_controlnet(name: str) -> Any:
    controlnets = [NEWEST["flux_controlnet"].build(in_channels=16) for _ in range(2)]
    return getattr(ppdiffusers, name)(
        **{name: part for name, part in build_flux("FluxPipeline").components.items() if "image" not in name},
        controlnet=ppdiffusers.FluxMultiControlNetModel(controlnets),
    )


def build_sd3(name: str) -> Any:
    return build_pipeline(
        name, transformer=sd3.SPECIMEN.build(), controlnet=NEWEST["sd3_controlnet"].build(), scheduler=scheduler(),
        vae=tiny.vae(shift_factor=0.1), tokenizer=load_tokenizer(),
    )  # fmt: skip


def call_sd3() -> dict[str, Any]:
    pooled = {
        "pooled_prompt_embeds": tiny.array((1, sd3.POOLED_DIM)),
        "negative_pooled_prompt_embeds": tiny.array((1, sd3.POOLED_DIM), seed=1),
    }
    return dict(**tiny.PROMPT_EMBEDS, **pooled, **IMAGE, control_image=an_image())


def build_without_encoders(name: str, scheduler: Callable[[], Any] = scheduler) -> Any:
    return build_pipeline(name, transformer=NEWEST[CASES[name].needs].build(), scheduler=scheduler())


def build_vctrl(name: str) -> Any:
    of_videos = tiny.build(
        ppdiffusers.AutoencoderKLCogVideoX, block_out_channels=(4, 4, 4, 4), norm_num_groups=2, latent_channels=4,
        layers_per_block=1,
    )  # fmt: skip
    pipe = build_pipeline(
        name, vae=of_videos, scheduler=ppdiffusers.CogVideoXDDIMScheduler(),
        transformer=NEWEST["cogvideox_vctrl"].build(), vctrl=NEWEST["vctrl"].build(),
    )  # fmt: skip
    # Paddle 3.3.1 finds the elements of a list along another axis of a view that was transposed.
    frames = pipe.prepare_v_cond_frames
    pipe.prepare_v_cond_frames = lambda *given: frames(*given).clone()
    return pipe


def call_vctrl() -> dict[str, Any]:
    frames = tiny.smooth_image(VIDEO["num_frames"], 3, VIDEO["height"], VIDEO["width"]).clip(0, 1)
    frames = ppdiffusers.utils.numpy_to_pil(frames.transpose([0, 2, 3, 1]).numpy())
    indices = list(range(VIDEO["num_frames"]))
    control = dict(conditioning_frames=frames, conditioning_frame_indices=indices, task="canny")
    return dict(**tiny.PROMPT_EMBEDS, **VIDEO, **control)


def build_wan_image(name: str) -> Any:
    of_videos = tiny.build(
        ppdiffusers.AutoencoderKLWan, base_dim=4, z_dim=4, num_res_blocks=1, latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )  # fmt: skip
    return build_pipeline(
        name, vae=of_videos, scheduler=scheduler(),
        image_encoder=image_encoder(32, 2, layers=2, width=wan_image.IMAGE_DIM, kind=transformers.CLIPVisionModel),
        image_processor=transformers.CLIPImageProcessor(size=32, crop_size=32),
        # The image's latents, and of each frame which of four are its, stand behind the noise.
        transformer=wan_image.SPECIMEN.build(in_channels=12),
    )  # fmt: skip


def first_frame() -> paddle.Tensor:
    return tiny.smooth_image(1, 3, VIDEO["height"], VIDEO["width"]).clip(0, 1)


def hunyuan_video() -> type:
    """The class: paddlenlp 2.8.1 lacks a name that its module imports, for an annotation alone."""
    spec: Any = importlib.util.find_spec("ppdiffusers.pipelines.hunyuan_video.pipeline_hunyuan_video")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers, "LlamaTokenizerFast", object, raising=False)
        spec.loader.exec_module(module)
    return module.HunyuanVideoPipeline


def build_hunyuan(name: str) -> Any:
    return build_pipeline(hunyuan_video(), transformer=NEWEST["hunyuan_video"].build(), scheduler=scheduler())


def call_hunyuan() -> dict[str, Any]:
    mask = paddle.ones([1, tiny.TEXT_TOKENS], dtype="int64")
    pooled = tiny.array((1, hunyuan.POOLED_DIM))
    return dict(prompt_embeds=tiny.text(1), **VIDEO, prompt_attention_mask=mask, pooled_prompt_embeds=pooled)


def call_mochi() -> dict[str, Any]:
    mask = paddle.ones([1, tiny.TEXT_TOKENS], dtype="bool")
    texts = dict(prompt_embeds=tiny.array((1, tiny.TEXT_TOKENS, 16)))
    texts["negative_prompt_embeds"] = tiny.array((1, tiny.TEXT_TOKENS, 16), seed=4)
    return dict(**texts, prompt_attention_mask=mask, negative_prompt_attention_mask=mask, **VIDEO)


@dataclass(frozen=True)
class Case:
    """A pipeline of tiny parts.

    It ``needs`` a specimen; ``build`` gets its class's name and ``config``. So many ``blocks`` merge in each
    denoiser, which has so many ``calls`` a step.
    """

    needs: str
    build: Callable[..., Any]
    call: Callable[[], dict[str, Any]]
    blocks: dict[str, int]
    config: dict[str, Any] = field(default_factory=dict)
    calls: int = 1


CASES = {
    "FluxPipeline": Case("flux", build_flux, call_flux, {"transformer": 4}),
    # What it is controlled by stands behind the noise.
    "FluxControlPipeline": Case(
        "flux", build_flux, lambda: call_flux(control_image=an_image()), {"transformer": 4},
        dict(in_channels=32, out_channels=16),
    ),
    "FluxControlNetPipeline": Case(
        "flux_controlnet", build_flux_controlnet,
        lambda: call_flux(
            control_image=[an_image(), an_image(seed=7)], control_mode=[0, 1], controlnet_conditioning_scale=[1.0, 0.5]
        ),
        {"transformer": 4, "controlnet": 8},
    ),
    "StableDiffusion3ControlNetPipeline": Case(
        "sd3_controlnet", build_sd3, call_sd3, {"transformer": 2, "controlnet": 2}
    ),
    "CogVideoXPipeline": Case(
        "cogvideox_rotary", build_without_encoders, lambda: dict(**tiny.PROMPT_EMBEDS, **VIDEO), {"transformer": 2},
        dict(scheduler=lambda: ppdiffusers.CogVideoXDDIMScheduler()),
    ),
    "CogVideoXVCtrlPipeline": Case("vctrl", build_vctrl, call_vctrl, {"transformer": 2, "vctrl": 2}),
    "MochiPipeline": Case("mochi", build_without_encoders, call_mochi, {"transformer": 2}),
    "HunyuanVideoPipeline": Case("hunyuan_video", build_hunyuan, call_hunyuan, {"transformer": 4}),
    "WanPipeline": Case(
        "wan", build_without_encoders, lambda: dict(**tiny.PROMPT_EMBEDS, **VIDEO), {"transformer": 2}, calls=2
    ),
    "WanImageToVideoPipeline": Case(
        "wan_image", build_wan_image, lambda: dict(**tiny.PROMPT_EMBEDS, **VIDEO, image=first_frame()),
        {"transformer": 2}, calls=2,
    ),
}  # fmt: skip


def parametrize_cases(*names: str) -> pytest.MarkDecorator:
    names = names if THERE else names[:1]
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=lacking(NEWEST[CASES[name].needs])) for name in names]
    )


def build_case(name: str) -> Any:
    case = CASES[name]
    pipe = case.build(name, **case.config)
    pipe.set_progress_bar_config(disable=True)
    assert type(pipe).__name__ == name
    return pipe


def latents(pipe: Any, steps: int = STEPS, **given: Any) -> np.ndarray:
    case = CASES[type(pipe).__name__]
    call = {**case.call(), **given}
    with keep_random_state(), kernels_anywhere(), NEWEST[case.needs].mended():
        paddle.seed(0)
        output = pipe(**call, num_inference_steps=steps, output_type="latent")
    return (output.images if hasattr(output, "images") else output.frames).numpy()


@parametrize_cases(*CASES)
def test_a_pipeline_merges_and_comes_back(name: str) -> None:
    pipe = build_case(name)
    plain = latents(pipe)
    assert pipe.apply_tome(ratio=0.5) is pipe
    assert pipe.tome.blocks == CASES[name].blocks
    with record_merging(pipe) as records:
        merged = latents(pipe)
    assert np.isfinite(merged).all()
    assert np.abs(merged - plain).max() > 1e-3
    # All blocks in all calls; a frame of 48 tokens merges 24.
    assert len(records) == STEPS * CASES[name].calls * sum(CASES[name].blocks.values())
    assert {each.num_merged for each in records} == {24 * each.grid.frames for each in records}
    # Whatever flow matching shifts: of four steps two are the first half, and a ramp has four even stairs.
    stairs = [int(48 * (0.7 - 0.6 * place / STEPS)) for place in range(STEPS)]
    for settings, counts in (
        (dict(ratio=0.5, end=0.5), (24, 24, 0, 0)), (dict(ratio=0.5, start=0.75), (0, 0, 0, 24)),
        (dict(ratio=(0.7, 0.1)), stairs),
    ):  # fmt: skip
        found = count_merged(pipe.apply_tome(**settings), partial(latents, pipe))
        assert found == {each: list(np.repeat(counts, CASES[name].calls)) for each in pipe.tome.blocks}
    assert np.array_equal(latents(pipe.apply_tome(ratio=0.0)), plain)
    assert np.array_equal(latents(pipe.remove_tome()), plain)


@parametrize_cases("FluxPipeline", "CogVideoXPipeline", "CogVideoXVCtrlPipeline", "HunyuanVideoPipeline", "WanPipeline")
def test_steps_share_matchings(name: str) -> None:
    """Wan calls its transformer twice a step, with a text each; VCtrl adds other tokens in every step."""
    pipe = build_case(name).apply_tome(0.5, reuse_steps=2)
    of_a_step = CASES[name].calls
    with count_matchings(getattr(pipe, "vctrl", pipe.transformer)) as counts:
        shared = latents(pipe)
    fresh = counts[:of_a_step]
    assert all(fresh)
    assert counts == [*fresh, *[0] * of_a_step] * 2
    assert np.isfinite(shared).all()
    assert np.abs(shared - latents(pipe.apply_tome(0.5))).max() > 1e-5


TIMESTEPS = (900, 750, 600, 450, 300, 50)


@pytest.mark.parametrize("settings", [dict(end=0.3), dict(start=0.3), dict(method="todo")], ids=str)
@parametrize_specimens("cogvideox_rotary", "hunyuan_video")
def test_pyramid_attention_broadcast_hands_out_all_tokens(specimen: Specimen, settings: dict[str, Any]) -> None:
    """The second and fourth step get what attention gave before, merged or not."""
    now = [0]
    model = specimen.build().apply_tome(0.5, **settings)

    def run() -> list[np.ndarray]:
        outputs = []
        for timestep in TIMESTEPS:
            now[0] = timestep
            outputs.append(specimen.run(model, timestep=timestep).numpy())
        return outputs

    with paddle.no_grad():
        computed = run()
        config = ppdiffusers.PyramidAttentionBroadcastConfig(
            spatial_attention_block_skip_range=2, spatial_attention_timestep_skip_range=(100, 800),
            current_timestep_callback=lambda: now[0],
        )  # fmt: skip
        model.enable_cache(config)
        model._reset_stateful_cache()
        cached = run()
    assert list(map(np.array_equal, cached, computed)) == [True, False, True, False, True, True]
    assert np.isfinite(cached).all()

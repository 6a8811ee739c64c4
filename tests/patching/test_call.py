"""A call of a denoiser: which one it is, and of which step; what belongs to it, and that nothing of it outlives it."""

import contextlib
import re
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest
from ppdiffusers.pipelines.controlnet import MultiControlNetModel

import tiny
from patching.helpers import StumbledError, count_alive, failing_in, refer_to_tensors, watch_blocks
from ppdiffusers_tome import apply_tome, remove_tome
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matching import match_tokens
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.merging.partition import regular_partition
from ppdiffusers_tome.patching.attach import list_attached_blocks


def test_a_warning_names_the_line_of_the_user() -> None:
    unet = apply_tome(tiny.unet(), 0.5, sx=32, sy=32)
    with pytest.warns(UserWarning, match="smaller than one cell") as caught, paddle.no_grad():
        unet(tiny.latent(), 500, tiny.text())
    (warning,) = [each for each in caught if "ToMe" in str(each.message)]
    assert warning.filename == __file__
    pipe = tiny.pipeline().apply_tome(0, cache=0.5)
    with pytest.warns(UserWarning, match="ToMe") as caught:  # not of ppdiffusers, which calls the denoiser
        tiny.run_pipeline(pipe, steps=3)
    assert {each.filename for each in caught if "ToMe" in str(each.message)} == {tiny.__file__}


WAYS_TO_CALL: dict[str, Callable[..., Any]] = {
    "called": lambda unet, *given: unet(*given),
    "forward": lambda unet, *given: unet.forward(*given),
    "keywords": lambda unet, x, at, text: unet(sample=x, timestep=at, encoder_hidden_states=text),
}


@pytest.mark.parametrize("call", WAYS_TO_CALL.values(), ids=WAYS_TO_CALL)
@paddle.no_grad()
def test_a_model_may_be_called_by_its_forward_without_hooks_or_with_keywords_alone(call: Callable[..., Any]) -> None:
    """Every call has its own timestep."""
    unet, other = (apply_tome(tiny.unet(), **tiny.MERGE_ALL) for _ in range(2))
    for timestep in (900, 20, 900):
        output = call(unet, tiny.latent(), timestep, tiny.text()).sample.numpy()
        assert np.array_equal(output, tiny.run_unet(other, timestep=timestep))


@pytest.mark.parametrize("ratio", [0.5, 0])
def test_a_class_of_the_user_may_hand_on_all_its_arguments(ratio: float) -> None:
    class Own(ppdiffusers.UNet2DConditionModel):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    images, reports = [], []
    for cls in (ppdiffusers.UNet2DConditionModel, Own):
        unet = tiny.unet(levels=1)
        unet.__class__ = cls
        pipe = apply_tome(tiny.pipeline(unet=unet), ratio, cache=0.3)
        images.append(tiny.run_pipeline(pipe, steps=12))
        reports.append(pipe.tome.entries[0].last_image)
    assert np.array_equal(*images)
    assert reports[0] == reports[1]
    assert reports[0].num_skipped > 0


def test_a_method_that_was_found_before_it_was_removed_runs_the_plain_model() -> None:
    unet, plain = tiny.unet(levels=1), tiny.run_unet(tiny.unet(levels=1))
    forward = apply_tome(unet, 0.5).forward
    remove_tome(unet)
    with paddle.no_grad():
        assert np.array_equal(forward(tiny.latent(), 500, tiny.text()).sample.numpy(), plain)


@pytest.mark.parametrize("failure", [None, StumbledError, KeyboardInterrupt])
@pytest.mark.parametrize("settings", [{}, dict(reuse_steps=3), dict(method="todo")], ids=str)
def test_a_pipeline_that_ended_keeps_no_tensor(settings: dict[str, Any], failure: type[BaseException] | None) -> None:
    pipe = tiny.pipeline().apply_tome(0.5, **settings)
    with watch_blocks(pipe.unet, refer_to_tensors) as references, contextlib.ExitStack() as stack:
        if failure is not None:
            stack.enter_context(contextlib.suppress(failure))
            stack.enter_context(failing_in(pipe.unet.mid_block, failure))
        tiny.run_pipeline(pipe, steps=3)
    assert references
    # What is chosen by ``todo`` with fixed destinations is a constant.
    assert count_alive(references) == 0


def test_threads_that_ask_for_gradients_and_threads_that_do_not_disturb_no_one() -> None:
    """Matching records none; Paddle's decorator for that would put back what another thread had."""
    x, partition = tiny.array((1, 256, 8)), regular_partition(Grid(16, 16), 2, 2)

    def ask(wanted: bool) -> bool:
        with paddle.set_grad_enabled(wanted):
            return all(match_tokens(x, partition, 64) and paddle.is_grad_enabled() == wanted for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, [True, False] * 4))


@pytest.mark.parametrize("settings", [*(dict(method=name) for name in sorted(METHODS)), dict(tile=4)], ids=str)
def test_what_is_masked_reaches_no_other_token(settings: dict[str, Any]) -> None:
    """Told by the tokens themselves: those that are masked may be anything."""
    unet = apply_tome(tiny.unet(levels=1), 0.5, use_rand=False, **settings)
    block, keep = unet.down_blocks[0].attentions[0].transformer_blocks[0], tiny.keep_mask().numpy()
    # Before ToMe merges, so that matchings are the same and the values alone differ.
    noise, seen = np.zeros((2, 256, 8), "float32"), []
    block.norm1.register_forward_post_hook(lambda layer, inputs, output: output + paddle.to_tensor(noise))
    block.attn1.register_forward_post_hook(lambda layer, inputs, output: seen.append(output.numpy()))
    given = dict(attention_mask=paddle.to_tensor(keep))
    with watch_blocks(unet) as called:
        tiny.run_unet(unet, **given)
    noise[keep == 0] = 7
    tiny.run_unet(unet, **given)
    masked, reduction = keep == 0, called[0].reduction
    if not reduction.keeps_queries:  # a group with a masked token is masked, and so is what comes of it
        owner = reduction.owner.numpy()
        masked = np.isin(owner, owner[masked.ravel()]).reshape(keep.shape)
    assert (~masked).sum() > 50
    assert np.abs(seen[0] - seen[1])[~masked].max() <= 1e-5
    assert np.isfinite(seen[1]).all()


class WholeDenoising(paddle.nn.Layer):
    """A denoising as one layer, as LCM's training model and exported samplers are."""

    def __init__(self, unet: Any) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        for timestep in (900, 700, 500, 300):
            x = x - 0.3 * self.unet(x, timestep, tiny.text()).sample
        return x


@pytest.mark.parametrize(
    "settings", [{}, dict(start=0.5), dict(end=0.5), dict(ratio=(0.7, 0.1)), dict(reuse_steps=2)], ids=str
)
def test_calls_within_a_layer_are_calls_of_the_denoiser(settings: dict[str, Any]) -> None:
    """Whether ToMe is applied to the layer around a denoiser or to the denoiser is the same."""
    around, inside = (WholeDenoising(tiny.unet()) for _ in range(2))
    apply_tome(around, **{"ratio": 0.5, **settings})
    apply_tome(inside.unet, **{"ratio": 0.5, **settings})
    with paddle.no_grad():
        expected = inside(tiny.latent()).numpy()
        assert np.array_equal(around(tiny.latent()).numpy(), expected)
    # The denoiser by itself, with ToMe on the layer around it, has its timestep.
    for timestep in (900, 100):
        expected = tiny.run_unet(inside.unet, timestep=timestep)
        assert np.array_equal(tiny.run_unet(around.unet, timestep=timestep), expected)


@paddle.no_grad()
def run_controlnets(model: Any, images: list[paddle.Tensor]) -> list[np.ndarray]:
    scales = dict(conditioning_scale=[1.0] * len(images))
    down, middle = model(tiny.latent(), 500, tiny.text(), images, **scales, return_dict=False)
    return [each.numpy() for each in (*down, middle)]


@pytest.mark.parametrize("settings", [{}, dict(reuse_steps=2)], ids=str)
def test_controlnets_of_one_model_keep_to_themselves(settings: dict[str, Any]) -> None:
    images = [tiny.array((2, 3, 32, 32), seed=seed) for seed in (3, 4)]
    multi = apply_tome(tiny.multi_controlnet(), 0.5, **settings)
    one = apply_tome(MultiControlNetModel([tiny.controlnet()]), 0.5, **settings)
    alone = [run_controlnets(one, [image]) for image in images]
    expected = [sum(parts) for parts in zip(*alone, strict=True)]
    for got, right in zip(run_controlnets(multi, images), expected, strict=True):
        assert np.abs(got - right).max() <= 1e-5
    assert len({id(override.state) for _, _, override in list_attached_blocks(multi)}) == 2


def run_img2img(pipe: Any) -> None:
    image = paddle.tanh(tiny.array((1, 3, 32, 32), seed=6))
    pipe(image=image, strength=0.3, num_inference_steps=10, output_type="latent", **tiny.PROMPT_EMBEDS)


@pytest.mark.parametrize(
    ("steps", "settings", "message"),
    [
        (None, dict(end=0.5), "no step of this image merges with start=0 and end=0.5: img2img runs only the last part"),
        (None, dict(start=0.5), "every step of this image merges with start=0.5 and end=1: .*img2img"),
        (None, dict(start=0.8), None),
        (8, dict(end=0.9), "every step of this image merges with start=0 and end=0.9: .* the last begins at 1 - 1/N"),
        (8, dict(end=0.875), None),
        (4, dict(ratio=(0.002, 0.001)), None),
        (4, dict(ratio=0.001, start=0.2, end=0.8), None),
        (12, dict(ratio=0, start=0.2, cache=0.2), None),
        (4, dict(sx=32, sy=32, end=0.95), "smaller than one cell"),
        (12, dict(start=0.75, end=0.8, cache=0.1), "no step .* a cache may skip those inside"),
    ],
    ids=str,
)
def test_idle_start_and_end_are_warned_of(steps: int | None, settings: dict[str, Any], message: str | None) -> None:
    """Once, where they leave no step merged or none unmerged."""
    pipe = tiny.pipeline(ppdiffusers.StableDiffusionPipeline if steps else ppdiffusers.StableDiffusionImg2ImgPipeline)
    pipe.apply_tome(**{"ratio": 0.5, **settings})
    with warnings.catch_warnings(record=True) as logged:
        warnings.simplefilter("always")
        for _ in range(2):
            tiny.run_pipeline(pipe, steps=steps) if steps else run_img2img(pipe)
    messages = [str(warning.message) for warning in logged if "ToMe" in str(warning.message)]
    assert len(messages) == (message is not None)
    assert message is None or re.search(message, messages[0])

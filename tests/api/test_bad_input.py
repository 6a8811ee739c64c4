"""Bad input: the right error, a sentence that says what to do, and a model that is as it was."""

import functools
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest

import tiny
from ppdiffusers_tome import ToMeConfig, apply_tome, get_tome, remove_tome, shared_copy
from ppdiffusers_tome.errors import NothingToMergeError, ToMeError, ToMeTypeError, ToMeValueError
from ppdiffusers_tome.settings.text import shorten_repr
from zoo import uvit, vq_diffusion

BELOW = r"must be at least 0 and below 0\.75 for a 2x2 stride; "
STRIDE = r"must be a whole number of tokens, 1 or more, such as 2"
LEVELS = r"must be 1, 2, 4, 8 or None \(the finest level of the model\)"
NUMBER = r"must be a number, the fraction of tokens to merge, such as 0\.5; got "

# Settings, the kind of error, its sentence.
BAD_SETTINGS: list[tuple[dict[str, Any], type[ToMeError], str]] = [
    (dict(ratio=-0.5), ToMeValueError, rf"ratio=-0\.5 {BELOW}raise the ratio to 0 or more"),
    (dict(ratio=0.75), ToMeValueError, rf"ratio=0\.75 {BELOW}lower the ratio or enlarge the stride"),
    (dict(ratio=math.nan), ToMeValueError, rf"ratio=nan {BELOW}lower the ratio"),
    (dict(ratio=True), ToMeTypeError, rf"ratio=True {NUMBER}bool"),
    (dict(ratio="0.5"), ToMeTypeError, rf"ratio='0\.5' {NUMBER}str"),
    (dict(ratio="mine.json"), ToMeTypeError, rf"{NUMBER}str; pass a file of settings as config='mine\.json'$"),
    (dict(ratio=[0.5]), ToMeValueError, r"ratio=\[0\.5\] must be a number, or a ramp of two or more: \(0\.7, 0\.3\)"),
    (dict(method="tom"), ToMeValueError, r"method='tom' must be one of 'keys', 'todo', 'tome'; did you mean tome"),
    (dict(method="todo", tile=16), ToMeValueError, r"tile=16 has no effect with method='todo', as this method"),
    (dict(method="todo", merge_mlp=True), ToMeValueError, r"merge_mlp=True .* as a feed-forward layer has no keys"),
    (dict(method="todo", ratio=0.76), ToMeValueError, r"ratio=0\.76 must be at least 0 and at most 0\.75 for a 2x2"),
    (dict(end=1.5), ToMeValueError, r"end=1\.5 must be a number, a fraction"),
    (dict(start=0.5, end=0.5), ToMeValueError, r"start=0\.5 must be below end=0\.5"),
    (dict(sx=0), ToMeValueError, rf"sx=0 {STRIDE}"),
    (dict(sx=1, sy=1), ToMeValueError, r"sx=1 and sy=1 make every token a dest.*use a stride such as sx=2, sy=2"),
    (dict(st=0), ToMeValueError, r"st=0 must be a whole number of frames, 1 or more, such as 2"),
    (dict(ratio=0.9, st=2), ToMeValueError, r"ratio=0\.9 must be at least 0 and below 0\.875 for a 2x2x2 stride"),
    (dict(max_downsample=3), ToMeValueError, rf"max_downsample=3 {LEVELS}"),
    (dict(merge_attn=False), ToMeValueError, r"are all False, so nothing would merge; set at least merge_attn=True"),
    (dict(merge_attn=1), ToMeTypeError, r"merge_attn=1 must be True or False; got int"),
    (dict(seed=2**63), ToMeValueError, r"seed=9223372036854775808 must be"),
    (dict(tile=1), ToMeValueError, r"tile=1 must be at least 2 for a 2x2 stride, so that a tile holds a destination"),
    (dict(reuse_steps=0), ToMeValueError, r"reuse_steps=0 must be a whole number of .*, 1 \(no reuse\) or more"),
    (dict(cache=1), ToMeValueError, "cache=1 must be the fraction of steps to skip, 0 <= cache < 1"),
    (dict(cache="half"), ToMeTypeError, "cache='half' must be the fraction of steps to skip, .*; got str"),
    (dict(seed=3, use_rand=False), ToMeValueError, r"seed=3 has no effect with use_rand=False, .*; omit it, or change"),
    (dict(config="nowhere.json"), ToMeValueError, r"nowhere\.json cannot be read as settings of token merging"),
    (dict(ratio=ToMeConfig(), config=ToMeConfig()), ToMeTypeError, r"ratio=ToMeC.* and config=ToMeC.* both hold all"),
]  # fmt: skip


def name_of(settings: dict[str, Any]) -> str:
    return "-".join(f"{key}={shorten_repr(value)}" for key, value in settings.items())


@functools.cache
def unet() -> paddle.nn.Layer:
    model = tiny.unet()
    tiny.run_unet(model)
    return model


@pytest.mark.parametrize(("settings", "error", "sentence"), BAD_SETTINGS, ids=[name_of(row[0]) for row in BAD_SETTINGS])
def test_bad_setting_leaves_the_model_as_it_is(settings: dict[str, Any], error: type[ToMeError], sentence: str) -> None:
    model = apply_tome(unet(), 0.25)
    applied, before = get_tome(model), tiny.snapshot(model)
    with pytest.raises(error, match=sentence) as raised:
        apply_tome(model, **settings)
    assert isinstance(raised.value, ToMeError)
    assert isinstance(raised.value, TypeError if error is ToMeTypeError else ValueError)
    assert tiny.snapshot(model) == before
    assert get_tome(model) == applied


@pytest.mark.parametrize("method", [False, True], ids=["function", "method"])
def test_a_preset_with_another_ratio_is_config(method: bool) -> None:
    apply = unet().apply_tome if method else functools.partial(apply_tome, unet())
    remedy = r"^'balanced' and ratio=0\.4 are both the ratio; .* as apply_tome\(config='balanced', ratio=0\.4\)$"
    with pytest.raises(ToMeTypeError, match=remedy):
        apply("balanced", ratio=0.4)
    assert apply(config="balanced", ratio=0.4).tome.config == replace(ToMeConfig.preset("balanced"), ratio=0.4)


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        (dict(ratio=np.float16(0.25)), dict(ratio=0.25)),
        (dict(ratio=Fraction(1, 4), method="todo"), dict(ratio=0.25, method="todo")),
        (dict(ratio=paddle.to_tensor(0.25)), dict(ratio=0.25)),
        (dict(ratio=np.array([0.7, 0.3])), dict(ratio=(0.7, 0.3))),
        (dict(sx=np.array(4), sy=paddle.to_tensor(4)), dict(sx=4, sy=4)),
        (dict(tile=np.int16(8), reuse_steps=np.array(3)), dict(tile=8, reuse_steps=3)),
        (dict(use_rand=np.False_, merge_mlp=np.array(True)), dict(use_rand=False, merge_mlp=True)),
        (dict(method=np.str_("keys")), dict(method="keys")),
        (dict(cache=np.array(0.25)), dict(cache=0.25)),
    ],
    ids=lambda settings: name_of(settings)[:60],
)
def test_numbers_of_other_libraries_are_held_as_pythons_own(settings: dict[str, Any], same: dict[str, Any]) -> None:
    config, plain = ToMeConfig(**settings), ToMeConfig(**same)
    assert apply_tome(unet(), **settings).tome.config == config == plain
    assert hash(config) == hash(plain)
    assert repr(config) == repr(plain)
    for name, value in vars(config).items():
        assert type(value) is type(getattr(plain, name))
    assert json.loads(config.to_json()) == json.loads(plain.to_json())


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (ToMeConfig.preset, r"the name of a preset \(balanced, quality\); got"),
        (ToMeConfig.load, r"the path of a JSON file of settings, such as 'tome\.json'"),
    ],
)
@pytest.mark.parametrize("value", [None, b"balanced", np.array(["balanced", "x"]), ToMeConfig], ids=str)
def test_what_is_no_name_is_refused(value: Any, function: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(ToMeTypeError, match=words):
        function(value)


SUPPORTED = r"docs/en/reference/coverage\.md lists which have"
NOTHING: dict[str, tuple[Callable[[], Any], str]] = {
    "vae": (tiny.vae, f"AutoencoderKL has nothing .*AutoencoderKL: it decodes images .*{SUPPORTED}"),
    "text encoder": (tiny.text_encoder, f"CLIPTextModel has nothing to merge: .*{SUPPORTED}"),
    "unconditional unet": (
        lambda: tiny.build(
            ppdiffusers.UNet2DModel, sample_size=8, block_out_channels=(8, 8), layers_per_block=1, norm_num_groups=4,
            down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2, add_attention=False,
        ),
        f"UNet2DModel has nothing to merge: .*{SUPPORTED}",
    ),
    "pipeline": (
        lambda: ppdiffusers.DDPMPipeline(NOTHING["unconditional unet"][0](), ppdiffusers.DDPMScheduler()),
        r"DDPMPipeline has nothing to merge: looked at unet \(UNet2DModel\) .*or to the pipeline that holds one",
    ),
    "a block without its parent": (
        lambda: tiny.unet().mid_block.attentions[0].transformer_blocks[0],
        f"BasicTransformerBlock has nothing to merge: .*{SUPPORTED}",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("build", "sentence"), NOTHING.values(), ids=NOTHING)
def test_model_without_blocks_on_a_grid_is_refused(build: Callable[[], Any], sentence: str) -> None:
    model = build()
    layers = [model] if isinstance(model, paddle.nn.Layer) else [model.unet]
    before = [tiny.snapshot(layer) for layer in layers]
    with pytest.raises(NothingToMergeError, match=sentence):
        apply_tome(model)
    assert [tiny.snapshot(layer) for layer in layers] == before


NO_MODELS = ["runwayml/stable-diffusion-v1-5", None, ppdiffusers.StableDiffusionPipeline, [1]]
FUNCTIONS = [apply_tome, remove_tome, get_tome, shared_copy]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("value", NO_MODELS, ids=[str(i) for i in range(len(NO_MODELS))])
def test_what_is_no_model_is_refused(value: Any, function: Callable[[Any], Any]) -> None:
    with pytest.raises(ToMeTypeError, match=f"a ppdiffusers pipeline or model.*{re.escape(type(value).__name__)}"):
        function(value)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: unet().apply_tome("balanced", raito=1), ToMeTypeError,
         r"apply_tome has no argument 'raito'; did you mean ratio"),
        (lambda: unet().apply_tome(preset="balanced"), ToMeTypeError,
         "give it as config='balanced', or in place of the ratio"),
        (lambda: ToMeConfig(raito=0.5), ToMeTypeError, r"unknown setting 'raito'.*did you mean ratio\?"),
        (lambda: ToMeConfig.preset("balancd"), ToMeValueError,
         r"the presets are balanced, quality; did you mean balanced\?"),
        (lambda: ToMeConfig("qualty"), ToMeTypeError, r"the presets are balanced, quality; did you mean quality\?"),
        (lambda: ToMeConfig("quality"), ToMeTypeError, r"such as 0\.5; got str; call ToMeConfig.preset\('quality'\)"),
        (lambda: apply_tome(unet(), config="balancd"), ToMeError, r"did you mean balanced\?"),
    ],
)  # fmt: skip
def test_misspelled_words_are_answered_with_the_right_ones(call: Any, error: type[ToMeError], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


@pytest.fixture
def warning_lines() -> Iterator[list[str]]:
    """Warnings that Python shows, as in a new process."""
    lines: list[str] = []
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.showwarning = lambda message, *_, **__: lines.append(str(message))
        yield lines


def test_preset_that_a_transformer_should_not_have_is_told_once_a_line(warning_lines: list[str]) -> None:
    for config in ("balanced", "balanced", "quality"):
        apply_tome(tiny.dit(), config)
        apply_tome(tiny.unet(), config)
    apply_tome(tiny.dit(), "balanced", cache=0.2)
    assert [line.split(",")[0].removeprefix("ToMe: ") for line in warning_lines] == [
        f"the preset {name!r} is not advised for Transformer2DModel" for name in ("balanced", "quality", "balanced")
    ]


def test_settings_with_which_nothing_merges_are_told_once(warning_lines: list[str]) -> None:
    for _ in range(2):
        assert apply_tome(tiny.unet(), 0).tome.config == ToMeConfig(0)
    apply_tome(tiny.unet(), 0, cache=0.2)
    assert warning_lines == [
        "ToMe: ratio=0 without a cache merges nothing; give a ratio, such as 0.5, or a cache, such as cache=0.2"
    ]


@pytest.mark.parametrize("settings", [dict(ratio=0.5), dict(ratio=0, cache=0.2)], ids=["merging", "a cache"])
def test_a_scheduler_that_keeps_a_history_of_noise_is_told_once_with_the_line_to_write(
    settings: dict[str, Any], warning_lines: list[str]
) -> None:
    for name in ("DDIMScheduler", "PNDMScheduler", "PNDMScheduler", "LMSDiscreteScheduler"):
        pipe = apply_tome(tiny.pipeline(scheduler=getattr(ppdiffusers, name)()), **settings)
        apply_tome(pipe.unet, **settings)
    line = "pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config)"
    lines = [each for each in warning_lines if each.startswith("ToMe")]
    told = [each.split(" goes on with the noise of earlier steps, ") for each in lines]
    assert [words[0] for words in told] == ["ToMe: PNDMScheduler", "ToMe: LMSDiscreteScheduler"]
    assert all(line in words[1] for words in told)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.skipif(paddle.get_device() != "cpu", reason="a GPU computes in it")
def test_half_precision_on_a_cpu_is_refused_by_its_name(dtype: str) -> None:
    """There Paddle's own error says only that no kernel is registered."""
    pipe = tiny.pipeline()
    pipe.unet.to(dtype=dtype)
    with pytest.raises(ToMeValueError, match=f"UNet2DConditionModel has weights in {dtype} on a CPU, .*; load it with"):
        apply_tome(pipe)
    assert get_tome(pipe) is None
    pipe.unet.to(dtype="float32")
    tiny.run_pipeline(apply_tome(pipe))


# The last two have no layer that embeds the timestep.
@pytest.mark.parametrize("make", [tiny.unet, tiny.dit, uvit.SPECIMEN.build, vq_diffusion.SPECIMEN.build])
def test_share_of_skipped_steps_that_loses_to_fewer_is_told_once(make: Any, warning_lines: list[str]) -> None:
    for cache in (0.2, 0.5, 0.5):
        apply_tome(make(), 0, cache=cache)
    (line,) = warning_lines
    assert "cache=0.5 skips more than 0.2 of the steps" in line
    assert "ppdiffusers_tome.tune" in line

"""Bad input: the right error, a sentence that says what to do, and a model that is as it was."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest
from ppdiffusers.models import PriorTransformer
from ppdiffusers.models.transformer_temporal import TransformerTemporalModel

import tiny
from ppdiffusers_tome import (
    NothingToMergeError,
    ToMeConfig,
    ToMeError,
    ToMeTypeError,
    ToMeValueError,
    applied_tome,
    apply_tome,
    remove_tome,
)

BELOW = r"must be at least 0 and below 0\.75 for a 2x2 stride; "
STRIDE = r"must be a whole number of tokens, 1 or more, such as 2; got "
LEVELS = r"must be 1, 2, 4, 8 or None \(the finest level of the model\)"
INTEGER_LEVEL = r"must be 1, 2, 4, 8 or None; got "
SEED = r"must be a whole number from 0 to 2\*\*63 - 1; got "
NUMBER = (
    r"must be a number, the share of tokens to merge, such as 0\.5, or the name of a preset "
    r"\(balanced, fast, quality\); got "
)

# Settings, the kind of error, its sentence.
BAD_SETTINGS: list[tuple[dict[str, Any], type[ToMeError], str]] = [
    (dict(ratio=-0.5), ToMeValueError, rf"ratio=-0\.5 {BELOW}raise the ratio to 0 or more"),
    (dict(ratio=1), ToMeValueError, rf"ratio=1 {BELOW}lower the ratio or enlarge the stride"),
    (dict(ratio=0.75), ToMeValueError, rf"ratio=0\.75 {BELOW}lower the ratio or enlarge the stride"),
    (dict(ratio=0.8, sx=2, sy=2), ToMeValueError, rf"ratio=0\.8 {BELOW}lower the ratio or enlarge the stride"),
    (dict(ratio=0.5, sx=1, sy=2), ToMeValueError, r"ratio=0\.5 must be at least 0 and below 0\.5 for a 1x2 stride"),
    (dict(ratio=0.95, sx=4, sy=4), ToMeValueError, r"below 0\.9375 for a 4x4 stride"),
    (dict(ratio=math.nan), ToMeValueError, rf"ratio=nan {BELOW}give a finite number such as 0\.5"),
    (dict(ratio=math.inf), ToMeValueError, rf"ratio=inf {BELOW}give a finite number"),
    (dict(ratio=-math.inf), ToMeValueError, rf"ratio=-inf {BELOW}give a finite number"),
    (dict(ratio=np.float32("nan")), ToMeValueError, r"give a finite number"),
    (dict(ratio=True), ToMeTypeError, rf"ratio=True {NUMBER}bool"),
    (dict(ratio="0.5"), ToMeTypeError, rf"ratio='0\.5' {NUMBER}str"),
    (dict(ratio=None), ToMeTypeError, rf"ratio=None {NUMBER}NoneType"),
    (dict(ratio=[0.5]), ToMeValueError, r"ratio=\[0\.5\] must be a number, or a ramp of two or more: \(0\.7, 0\.3\)"),
    (dict(ratio=[0.5, 0.8]), ToMeValueError, rf"ratio\[1\]=0\.8 {BELOW}lower the ratio"),
    (dict(ratio=[0.5, "0.4"]), ToMeTypeError, rf"ratio\[1\]='0\.4' {NUMBER}str"),
    (dict(ratio={}), ToMeValueError, r"ratio=\{\} names no level; give one such as \{1: 0\.5\}"),
    (dict(ratio={3: 0.5}), ToMeValueError, r"has level 3; levels are 1, 2, 4 and 8"),
    (dict(ratio={"1": 0.5}), ToMeValueError, r"has level '1'; levels are 1, 2, 4 and 8"),
    (dict(ratio={1: 0.8}), ToMeValueError, rf"ratio\[1\]=0\.8 {BELOW}lower the ratio"),
    (dict(ratio={1: 0.5}, max_downsample=1), ToMeValueError, r"max_downsample=1 says nothing; leave it at None"),
    (dict(method="merge"), ToMeValueError, r"method='merge' must be one of 'prune', 'todo', 'tofu', 'tome'"),
    (dict(method=None), ToMeValueError, r"method=None must be one of"),
    (dict(method="todo", tile=16), ToMeValueError, r"tile=16 has no effect with method='todo', as this method"),
    (dict(method="todo", reuse_steps=4), ToMeValueError, r"reuse_steps=4 has no effect with method='todo'"),
    (dict(method="todo", merge_mlp=True), ToMeValueError, r"merge_mlp=True .* as a feed-forward layer has no keys"),
    (dict(method="todo", merge_crossattn=True), ToMeValueError, r"as the keys of cross-attention are the text's"),
    (dict(method="todo", min_similarity=0.5), ToMeValueError, r"min_similarity=0\.5 has no effect with method='todo'"),
    (dict(method="todo", ratio=0.76), ToMeValueError, r"ratio=0\.76 must be at least 0 and below 0\.75"),
    (dict(min_similarity=1.5), ToMeValueError, r"min_similarity=1\.5 must be a cosine, from -1 to 1, such as 0\.9"),
    (dict(min_similarity=math.nan), ToMeValueError, r"min_similarity=nan must be a cosine"),
    (dict(min_similarity="0.9"), ToMeTypeError, r"min_similarity='0\.9' must be a number; got str"),
    (dict(start=0.5, end=0.5), ToMeValueError, r"start=0\.5 and end=0\.5 must be shares .*0 <= start < end <= 1"),
    (dict(end=1.5), ToMeValueError, r"start=0 and end=1\.5 must be shares of the denoising"),
    (dict(start=math.nan), ToMeValueError, r"must be shares of the denoising"),
    (dict(start=None), ToMeTypeError, r"start=None must be a number; got NoneType"),
    (dict(ratio=0.5 + 0j), ToMeTypeError, rf"{NUMBER}complex"),
    (dict(ratio=np.array(0.5)), ToMeTypeError, rf"{NUMBER}ndarray"),
    (dict(ratio=dict(ratio=0.5)), ToMeValueError, r"has level 'ratio'; levels are 1, 2, 4 and 8"),
    (dict(sx=0), ToMeValueError, r"sx=0 must be 1 or more; the usual stride is 2"),
    (dict(sy=-1), ToMeValueError, r"sy=-1 must be 1 or more; the usual stride is 2"),
    (dict(sx=1.5), ToMeTypeError, rf"sx=1\.5 {STRIDE}float"),
    (dict(sy=2.0), ToMeTypeError, rf"sy=2\.0 {STRIDE}float"),
    (dict(sx="2"), ToMeTypeError, rf"sx='2' {STRIDE}str"),
    (dict(sy=True), ToMeTypeError, rf"sy=True {STRIDE}bool"),
    (dict(sx=None), ToMeTypeError, rf"sx=None {STRIDE}NoneType"),
    (dict(sx=1, sy=1), ToMeValueError, r"sx=1 and sy=1 make every token a dest.*use a stride such as sx=2, sy=2"),
    (dict(ratio=0, sx=1, sy=1), ToMeValueError, r"sx=1 and sy=1 make every token a destination"),
    (dict(max_downsample=0), ToMeValueError, rf"max_downsample=0 {LEVELS}"),
    (dict(max_downsample=3), ToMeValueError, rf"max_downsample=3 {LEVELS}"),
    (dict(max_downsample=16), ToMeValueError, rf"max_downsample=16 {LEVELS}"),
    (dict(max_downsample=-1), ToMeValueError, rf"max_downsample=-1 {LEVELS}"),
    (dict(max_downsample=1.0), ToMeTypeError, rf"max_downsample=1\.0 {INTEGER_LEVEL}float"),
    (dict(max_downsample="1"), ToMeTypeError, rf"max_downsample='1' {INTEGER_LEVEL}str"),
    (dict(max_downsample=True), ToMeTypeError, rf"max_downsample=True {INTEGER_LEVEL}bool"),
    (dict(merge_attn=False), ToMeValueError, r"are all False, so nothing would merge; set at least merge_attn=True"),
    (dict(merge_attn=1), ToMeTypeError, r"merge_attn=1 must be True or False"),
    (dict(merge_crossattn=0), ToMeTypeError, r"merge_crossattn=0 must be True or False"),
    (dict(merge_mlp="yes"), ToMeTypeError, r"merge_mlp='yes' must be True or False"),
    (dict(use_rand=None), ToMeTypeError, r"use_rand=None must be True or False"),
    (dict(use_rand=np.True_), ToMeTypeError, r"use_rand=.*True_? must be True or False"),
    (dict(seed=-1), ToMeValueError, r"seed=-1 must be from 0 to 2\*\*63 - 1"),
    (dict(seed=2**63), ToMeValueError, r"seed=9223372036854775808 must be from 0 to 2\*\*63 - 1"),
    (dict(seed=1.5), ToMeTypeError, rf"seed=1\.5 {SEED}float"),
    (dict(seed="a"), ToMeTypeError, rf"seed='a' {SEED}str"),
    (dict(seed=True), ToMeTypeError, rf"seed=True {SEED}bool"),
    (dict(seed=None), ToMeTypeError, rf"seed=None {SEED}NoneType"),
    (dict(tile=1), ToMeValueError, r"tile=1 must be at least 2 for a 2x2 stride, so that a tile holds a destination"),
    (dict(tile=3, sx=4, sy=2), ToMeValueError, r"tile=3 must be at least 4 for a 4x2 stride"),
    (dict(tile=16.0), ToMeTypeError, r"tile=16\.0 must be a whole number of tokens, such as 16, or None.*got float"),
    (dict(tile=True), ToMeTypeError, r"tile=True must be a whole number of tokens.*got bool"),
    (dict(reuse_steps=0), ToMeValueError, r"reuse_steps=0 must be 1 \(no reuse\) or more, such as 4"),
    (dict(reuse_steps=2.5), ToMeTypeError, r"reuse_steps=2\.5 must be a whole number of denoising steps.*got float"),
    (dict(reuse_steps=None), ToMeTypeError, r"reuse_steps=None must be a whole number.*got NoneType"),
    (dict(reuse_blocks=1), ToMeTypeError, r"reuse_blocks=1 must be True or False"),
    (dict(config=0.5), ToMeTypeError, r"config=0\.5 must be a ToMeConfig; got float"),
    (dict(config=dict(ratio=0.5)), ToMeTypeError, r"must be a ToMeConfig; got dict"),
    (dict(config=ToMeConfig), ToMeTypeError, r"must be a ToMeConfig; got type"),
    (dict(config=ToMeConfig(), ratio=0.4), ToMeTypeError, r"or preset was given together with ratio; give one"),
    (dict(ratio=ToMeConfig(), seed=4, sx=4), ToMeTypeError, r"or preset was given together with sx, seed; give one"),
]  # fmt: skip


def name_of(settings: dict[str, Any]) -> str:
    return "-".join(f"{key}={value}" for key, value in settings.items())


@functools.cache
def unet() -> tiny.Model:
    model = tiny.unet()
    tiny.run_unet(model)
    return model


@pytest.mark.parametrize("merged", [False, True], ids=["plain", "merged"])
@pytest.mark.parametrize(("settings", "error", "sentence"), BAD_SETTINGS, ids=[name_of(row[0]) for row in BAD_SETTINGS])
def test_bad_setting_is_refused_and_the_model_stays(
    settings: dict[str, Any], error: type[ToMeError], sentence: str, merged: bool
) -> None:
    model = unet()
    remove_tome(model)
    if merged:
        apply_tome(model, 0.25)
    applied, before = applied_tome(model), tiny.snapshot(model)
    with pytest.raises(error, match=sentence) as raised:
        apply_tome(model, **settings)
    assert isinstance(raised.value, ToMeError)
    assert isinstance(raised.value, TypeError if error is ToMeTypeError else ValueError)
    assert tiny.snapshot(model) == before
    assert applied_tome(model) == applied


def test_table_is_long_enough() -> None:
    assert len(BAD_SETTINGS) >= 40


def test_unknown_setting_is_refused() -> None:
    with pytest.raises(ToMeTypeError, match=r"unknown setting 'ration', 'zz'; the settings are ratio, max_downsample"):
        ToMeConfig.from_dict({"ration": 0.5, "zz": 1, "sx": 2})
    with pytest.raises(TypeError, match="ration"):
        unet().apply_tome(ration=0.5)


def test_config_is_frozen_and_round_trips() -> None:
    config = ToMeConfig(
        ratio=np.float32(0.5), max_downsample=np.int64(4), sx=np.int32(4), seed=np.uint64(2**63 - 1),
        tile=np.int16(8), reuse_steps=np.int8(2),
    )  # fmt: skip
    assert ToMeConfig.from_dict(config.to_dict()) == config
    plain = {key: type(value) for key, value in config.to_dict().items()}
    assert {plain.pop(name) for name in ("ratio", "start", "end")} == {float}
    assert (plain.pop("method"), plain.pop("min_similarity")) == (str, type(None))
    flags = {"use_rand", "merge_attn", "merge_crossattn", "merge_mlp", "reuse_blocks"}
    assert plain == {key: bool if key in flags else int for key in plain}
    with pytest.raises(AttributeError):
        config.ratio = 0.6  # type: ignore[misc]


SUPPORTED = "`ppdiffusers-tome doctor` lists which have"
NOTHING: dict[str, tuple[Callable[[], Any], str]] = {
    "vae": (tiny.vae, f"AutoencoderKL has nothing .*AutoencoderKL: it decodes pictures .*{SUPPORTED}"),
    "text encoder": (tiny.text_encoder, f"CLIPTextModel has nothing to merge: .*{SUPPORTED}"),
    "unconditional unet": (
        lambda: tiny.build(
            ppdiffusers.UNet2DModel, sample_size=8, block_out_channels=(8, 8), layers_per_block=1, norm_num_groups=4,
            down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2, add_attention=False,
        ),
        f"UNet2DModel has nothing to merge: .*{SUPPORTED}",
    ),
    "linear": (lambda: paddle.nn.Linear(2, 2), f"Linear has nothing to merge: .*{SUPPORTED}"),
    "temporal": (
        lambda: tiny.build(
            TransformerTemporalModel, num_attention_heads=2, attention_head_dim=4, in_channels=8, norm_num_groups=4
        ),
        f"TransformerTemporalModel has nothing to merge: .*{SUPPORTED}",
    ),
    "prior": (
        lambda: tiny.build(
            PriorTransformer, num_attention_heads=2, attention_head_dim=4, num_layers=1, embedding_dim=8,
            num_embeddings=3, additional_embeddings=4,
        ),
        f"PriorTransformer has nothing to merge: .*not a grid of image tokens.*{SUPPORTED}",
    ),
    "pipeline": (
        lambda: ppdiffusers.DDPMPipeline(NOTHING["unconditional unet"][0](), ppdiffusers.DDPMScheduler()),
        r"DDPMPipeline has nothing to merge: looked at unet \(UNet2DModel\) .*or to the pipeline that holds one",
    ),
    "a block without its host": (
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


def test_flags_without_their_sublayer_are_named() -> None:
    dit = tiny.dit()
    before = tiny.snapshot(dit)
    with pytest.raises(NothingToMergeError, match=r"no block of it has the sublayer that merge_crossattn=True merges"):
        apply_tome(dit, merge_attn=False, merge_crossattn=True)
    assert tiny.snapshot(dit) == before


NO_MODELS = ["runwayml/stable-diffusion-v1-5", None, 3, tiny.unet, ppdiffusers.UNet2DConditionModel,
             ppdiffusers.StableDiffusionPipeline, {}, [1], object()]  # fmt: skip


@pytest.mark.parametrize("function", [apply_tome, remove_tome, applied_tome])
@pytest.mark.parametrize("given", NO_MODELS, ids=[str(i) for i in range(len(NO_MODELS))])
def test_what_is_no_model_is_refused(given: Any, function: Callable[[Any], Any]) -> None:
    sentence = r"ToMe needs a ppdiffusers pipeline or model, .*of type " + re.escape(type(given).__name__)
    with pytest.raises(ToMeTypeError, match=sentence):
        function(given)


def test_bad_setting_is_found_before_a_bad_model() -> None:
    with pytest.raises(ToMeValueError, match="ratio=2"):
        apply_tome(tiny.vae(), ratio=2)

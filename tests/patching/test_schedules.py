"""Ratios that differ by level and over the denoising, and settings as files and presets."""

import argparse
import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import paddle
import pytest
from paddle.nn import Layer
from paddle.static import InputSpec

import tiny
from patching.helpers import count_queries
from ppdiffusers_tome import ToMeConfig, ToMeError, ToMeTypeError, ToMeValueError, apply_tome
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.settings.presets import PRESETS
from ppdiffusers_tome.tools.console.tome_arguments import parse_tome_config

RAMP = ToMeConfig([0.6, 0.2, 0.4])


class TestRatio:
    @pytest.mark.parametrize(
        ("config", "ratios"),
        [
            # Ratios by progress.
            (ToMeConfig(0.4), {None: 0.4, 0.0: 0.4, 1.0: 0.4}),
            (RAMP, {0.0: 0.6, 0.25: 0.4, 0.5: 0.2, 0.75: 0.3, 1.0: 0.4}),
            # The start is in and the end is out, but for that of the denoising.
            (ToMeConfig(0.5, start=0.2, end=0.7), {0.0: 0, 0.19: 0, 0.2: 0.5, 0.69: 0.5, 0.7: 0, 1.0: 0}),
            (ToMeConfig(0.5, start=0.2), {1.0: 0.5}),
        ],
        ids=str,
    )  # fmt: skip
    def test_the_ratio_follows_the_progress(self, config: ToMeConfig, ratios: dict) -> None:
        assert {at: config.ratio_at(at) for at in ratios} == pytest.approx(ratios)

    @pytest.mark.parametrize(
        ("config", "at", "merged"),
        [
            (ToMeConfig(0.5), None, 12), (ToMeConfig(0.26), 0.3, 6), (ToMeConfig(0), None, 0),
            (ToMeConfig(0.5, st=2), None, 36), (ToMeConfig(0.7, st=2), None, 50),
            (ToMeConfig((0.5, 0.25)), 0.5, 9), (ToMeConfig(0.5, end=0.5), 0.5, 0),
        ],
    )  # fmt: skip
    def test_num_merged_is_of_a_frame(self, config: ToMeConfig, at: float | None, merged: int) -> None:
        """Or of all frames with a stride over them."""
        assert config.num_merged(Grid(height=4, width=6, frames=3), at) == merged


CONFIGS = [
    ToMeConfig((0.7, 0.3), start=0.25, end=0.75), ToMeConfig(0.75, method="todo", use_rand=False),
    ToMeConfig(cache=0.25, method="keys", tile=8),
]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        ('{"ratio":\n 0.5,, }', ToMeValueError, r"cannot be read as settings of token merging \(.*: line 2 column 6 "),
        ("[0.5]", ToMeValueError, r'must hold a JSON object such as \{"ratio": 0.5\}; got list'),
        ('{"ration": 0.5}', ToMeTypeError, r"unknown setting 'ration'; .*; did you mean ratio\?"),
        ('{"ratio": {"1": 0.5}}', ToMeTypeError, "ratio=.* must be a number, .*; got dict"),
        ('{"cache": [0, 1, 4]}', ToMeTypeError, r"cache=\[0, 1, 4\] must be the fraction .*; got list"),
        ('{"sx": "2"}', ToMeTypeError, "sx='2'"),
        ('{"ratio": 1e999}', ToMeValueError, "lower the ratio"),
    ],
)
def test_a_bad_file_is_told(content: str, error: type[ToMeError], words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    for read in (ToMeConfig.load, lambda path: apply_tome(Layer(), config=path)):
        with pytest.raises(error, match=words) as raised:
            read(tmp_path / "config.json")
        assert str(raised.value).startswith(str(tmp_path / "config.json"))


def test_a_summary_names_what_is_not_usual() -> None:
    assert ToMeConfig(0.25).summary == "ratio 0.25"
    assert ToMeConfig(8 / 9, method="keys", sx=4, sy=3).summary == "ratio 0.8889, sx 4, sy 3, method keys"
    assert ToMeConfig(8 / 9, method="todo", sx=3, sy=3).summary == (
        "preset balanced (ratio 0.8889, sx 3, sy 3, method todo)"
    )
    assert ToMeConfig([0.5, 0.1], tile=16).summary == "ratio 0.5 to 0.1, tile 16"
    assert ToMeConfig(0, cache=0.2).summary == "ratio 0, cache 0.2"


SETTINGS = [field.name for field in fields(ToMeConfig)]
# Nothing is at its default, but seed, which goes with random destinations, st, which asks for a video, and method, as
# the others are for self-attention alone.
AT_DEFAULT = ("seed", "st", "method")
UNUSUAL = ToMeConfig(
    (0.3, 0.1), max_downsample=2, sx=3, sy=4, use_rand=False, merge_attn=False, merge_crossattn=True, merge_mlp=True,
    tile=8, reuse_steps=2, start=0.25, end=0.75, cache=0.3,
)  # fmt: skip


def options(settings: dict[str, Any], config: str) -> argparse.Namespace:
    """What the command line makes of options; what is not given is None or missing."""
    values = {name if name == "ratio" else f"tome_{name}": value for name, value in settings.items()}
    return argparse.Namespace(**{"config": config, "ratio": None, "compile": None, **values})


class TestExplicitSettings:
    """A preset or config is where settings begin; what is given replaces its own, also where it is the default."""

    @pytest.fixture(scope="class")
    def unet(self) -> Layer:
        return tiny.unet()

    @pytest.mark.parametrize("name", SETTINGS)
    @pytest.mark.parametrize("base", [*PRESETS, UNUSUAL], ids=str)
    def test_the_default_given_beside_a_base_wins(self, base: str | ToMeConfig, name: str, unet: Layer) -> None:
        default, config = getattr(ToMeConfig(), name), ToMeConfig.preset(base) if isinstance(base, str) else base
        assert getattr(UNUSUAL, name) != default or name in AT_DEFAULT
        given = {name: default}
        if isinstance(base, str) and name in ("sx", "sy", "method"):  # with which the ratio of the preset is too high
            given["ratio"] = 0.5
        expected = replace(config, **given)
        assert apply_tome(unet, config=base, **given).tome.config == expected
        if isinstance(base, str):
            if "ratio" not in given:  # the preset stands in its place
                assert apply_tome(unet, base, **given).tome.config == expected
            if default is not None and "ratio" not in given:  # which commands do not take with a config
                assert parse_tome_config(options(given, base)) == expected

    @pytest.mark.parametrize(
        ("arguments", "keywords", "expected"),
        [
            ((0.6, None, 4, 2, True, True, False, False, 2), {}, ToMeConfig(0.6, sx=4, seed=2)),
            (("quality", None, 2, 2), {}, ToMeConfig.preset("quality")),
            (("balanced", None, 8), {}, replace(ToMeConfig.preset("balanced"), sx=8)),
            ((UNUSUAL, None, 8), {}, replace(UNUSUAL, sx=8, max_downsample=None)),
            ((UNUSUAL, 2, 3, 4, True, True, False, False, 0), {},
             replace(UNUSUAL, use_rand=True, merge_attn=True, merge_crossattn=False, merge_mlp=False, seed=0)),
            (((0.6, 0.2),), dict(config=UNUSUAL), replace(UNUSUAL, ratio=(0.6, 0.2))),
            ((), dict(config=ToMeConfig(0.5, st=2), st=1), ToMeConfig(0.5)),  # as st is for some models alone
        ],
    )  # fmt: skip
    def test_by_position_too(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any], expected: ToMeConfig, unet: Layer
    ) -> None:
        assert apply_tome(unet, *arguments, **keywords) is unet
        assert unet.tome.config == expected

    @pytest.mark.parametrize("name", PRESETS)
    def test_nothing_given_leaves_the_base_as_it_is(self, name: str, unet: Layer) -> None:
        config = ToMeConfig.preset(name)
        for base in (name, config):
            assert apply_tome(unet, base).tome.config == unet.apply_tome(config=base).tome.config == config
        assert apply_tome(unet, tile=None, config=None).tome.config == ToMeConfig()

    @pytest.mark.parametrize(
        ("base", "settings", "words"),
        [
            ("quality", dict(method="tome"), r"ratio=0\.75 must be at least 0 and below 0\.75 for a 2x2 stride"),
            ("quality", dict(tile=16), "tile=16 has no effect with method='todo'"),
            (ToMeConfig(0.9, sx=4, sy=4), dict(sx=2, sy=2), r"ratio=0\.9 must be .* below 0\.75 for a 2x2 stride"),
            (ToMeConfig(start=0.5), dict(end=0.25), r"start=0\.5 must be below end=0\.25"),
            (ToMeConfig(merge_attn=False, merge_mlp=True), dict(merge_mlp=False), "are all False"),
            ("balanced", dict(sx=0), "sx=0 must be"),
        ],
    )  # fmt: skip
    def test_what_does_not_go_together_is_refused(
        self, base: str | ToMeConfig, settings: dict[str, Any], words: str, unet: Layer
    ) -> None:
        apply_tome(unet, 0.25)
        before = tiny.snapshot(unet)
        with pytest.raises(ToMeValueError, match=words):
            apply_tome(unet, config=base, **settings)
        assert tiny.snapshot(unet) == before

    def test_a_file_is_a_base_too_whatever_its_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        ToMeConfig(0.9, sx=4, sy=4).save(path := str(tmp_path / "balanced"))
        assert parse_tome_config(options({"sx": 5}, path)) == ToMeConfig(0.9, sx=5, sy=4)
        with pytest.raises(ToMeError, match=r"ratio=0\.9 must be at least 0 and below 0\.875 for a 2x4 stride"):
            parse_tome_config(options({"sx": 2}, path))
        unet = apply_tome(tiny.unet(), config=Path("balanced"), seed=3)
        assert unet.tome.config == ToMeConfig(0.9, sx=4, sy=4, seed=3)

    def test_types_and_help_are_those_of_the_settings(self) -> None:
        of_config, of_function = (get_type_hints(each) for each in (ToMeConfig, apply_tome))
        assert {name: of_function[name] for name in SETTINGS if name != "ratio"} == {
            name: of_config[name] for name in SETTINGS if name != "ratio"
        }
        given = signature(apply_tome).parameters
        assert {str(given[name].default) for name in SETTINGS} == {"..."}


class TestUnchangeable:
    """A config says the same for ever, so that it can be a key, and be shared by pipelines."""

    def test_its_ratio_cannot_be_changed(self) -> None:
        with pytest.raises(AttributeError):
            RAMP.ratio = 0.6  # type: ignore[misc]
        with pytest.raises(TypeError):
            RAMP.ratio[0] = 0.99  # type: ignore[index]
        given = [0.3, 0.2]
        config = ToMeConfig(given)
        given[0] = 0.1
        assert config.ratio == (0.3, 0.2)

    @pytest.mark.parametrize("config", [*CONFIGS, UNUSUAL, RAMP], ids=str)
    @pytest.mark.parametrize(
        "again",
        [
            copy.copy, copy.deepcopy, replace, lambda config: pickle.loads(pickle.dumps(config)),
            lambda config: ToMeConfig(**config.to_dict()), lambda config: ToMeConfig(**vars(config)),
            lambda config: ToMeConfig(**json.loads(config.to_json())), lambda config: eval(repr(config)),
            lambda config: ToMeConfig(**asdict(config)),
        ],
        ids=["copy", "deepcopy", "replace", "pickle", "dict", "vars", "json", "repr", "asdict"],
    )  # fmt: skip
    def test_it_survives_whole(self, config: ToMeConfig, again: Callable[[ToMeConfig], ToMeConfig]) -> None:
        same = again(config)
        assert same == config
        assert hash(same) == hash(config)
        assert repr(same) == repr(config)
        assert {config: "found"}[same] == "found"


def count_finest_tokens(unet: Any, timestep: float) -> int:
    with count_queries(unet) as counts:
        tiny.run_unet(unet, timestep=timestep)
    (tokens,) = counts[".down_blocks.0.attentions.0.transformer_blocks.0"]
    return tokens


class TestInAModel:
    @pytest.mark.parametrize(("timestep", "tokens"), [(999, 103), (750, 141), (500, 180), (0, 256)])
    def test_a_ramp_follows_the_timestep(self, timestep: int, tokens: int) -> None:
        unet = apply_tome(tiny.unet(), (0.6, 0.0))
        assert count_finest_tokens(unet, timestep) == pytest.approx(tokens, abs=1)

    def test_outside_start_and_end_it_is_the_plain_model(self) -> None:
        unet = tiny.unet()
        plain = {at: tiny.run_unet(unet, timestep=at) for at in (900, 500, 100)}
        apply_tome(unet, 0.5, start=0.3, end=0.8)
        same = {at: np.array_equal(tiny.run_unet(unet, timestep=at), plain[at]) for at in plain}
        assert same == {900: True, 500: False, 100: True}

    def test_reuse_and_a_ramp_go_together(self) -> None:
        """A matching that is kept keeps its number of tokens, until a fresh one is made."""
        pipe = tiny.Sampler(apply_tome(tiny.unet(), (0.6, 0.0), reuse_steps=3), tiny.scheduler())
        seen = pipe(lambda unet, number, timestep: count_finest_tokens(unet, timestep), steps=6)
        assert seen[0] == seen[1] == seen[2] != seen[3] == seen[4] == seen[5]

    @pytest.mark.parametrize("settings", [dict(ratio=(0.6, 0.2)), dict(end=0.5), dict(ratio=0, cache=0.5)])
    def test_a_program_cannot_follow_what_is_read_on_the_host(self, settings: dict[str, Any]) -> None:
        unet = apply_tome(tiny.small_unet(), **settings)
        specs = [InputSpec([2, 4, 16, 16], "float32"), InputSpec([1], "int64"), InputSpec(tiny.text().shape, "float32")]
        program = paddle.jit.to_static(unet, input_spec=specs, full_graph=True)
        with pytest.raises(ToMeValueError, match=r"part of a program, as it depends on the step; .*before tracing"):
            program.forward.concrete_program  # noqa: B018  what to_static records, it records when asked

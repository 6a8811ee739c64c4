"""Ratios that differ by level and over the denoising, and settings as files and presets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.static import InputSpec

import tiny
from ppdiffusers_tome import NothingToMergeError, ToMeConfig, ToMeError, ToMeTypeError, ToMeValueError, apply_tome
from ppdiffusers_tome.config import presets
from ppdiffusers_tome.zoo import wuerstchen_prior


class TestRatio:
    def test_a_number_is_the_same_always(self) -> None:
        config = ToMeConfig(0.4)
        assert [config.ratio_at(level, at) for level in (1, 8) for at in (None, 0.0, 1.0)] == [0.4] * 6
        assert not config.by_progress
        assert config.levels is None

    def test_a_ramp_is_straight_between_its_points(self) -> None:
        config = ToMeConfig([0.6, 0.2, 0.4])
        assert config.by_progress
        assert config.highest_ratio(1) == 0.6
        found = [config.ratio_at(1, at) for at in (0.0, 0.25, 0.5, 0.75, 1.0)]
        np.testing.assert_allclose(found, [0.6, 0.4, 0.2, 0.3, 0.4])

    def test_levels_that_are_left_out_do_not_merge(self) -> None:
        config = ToMeConfig({2: 0.25, 1: (0.5, 0.0)})
        assert config.levels == (1, 2)
        assert (config.ratio_at(1, 0.5), config.ratio_at(2, 0.5), config.ratio_at(4, 0.5)) == (0.25, 0.25, 0.0)
        assert (config.highest_ratio(1), config.highest_ratio(4)) == (0.5, 0.0)

    @pytest.mark.parametrize(
        ("at", "ratio"), [(0.0, 0.0), (0.19, 0.0), (0.2, 0.5), (0.69, 0.5), (0.7, 0.0), (1.0, 0.0)]
    )
    def test_start_is_in_and_end_is_out(self, at: float, ratio: float) -> None:
        assert ToMeConfig(0.5, start=0.2, end=0.7).ratio_at(1, at) == ratio

    def test_the_end_of_the_denoising_is_in(self) -> None:
        assert ToMeConfig(0.5, start=0.2).ratio_at(1, 1.0) == 0.5


CONFIGS = [
    ToMeConfig(0.3, method="prune", tile=8), ToMeConfig((0.7, 0.3), start=0.25, end=0.75),
    ToMeConfig({1: 0.5, 4: [0.2, 0.1]}, min_similarity=0.8), ToMeConfig(0.75, method="todo", use_rand=False),
]  # fmt: skip


class TestFiles:
    @pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.method)
    def test_a_file_gives_the_settings_back(self, config: ToMeConfig, tmp_path: Path) -> None:
        config.save(tmp_path / "config.json")
        assert ToMeConfig.load(tmp_path / "config.json") == config
        assert json.loads((tmp_path / "config.json").read_text()) == config.to_dict()
        assert hash(ToMeConfig.load(tmp_path / "config.json")) == hash(config)

    @pytest.mark.parametrize(
        ("content", "error", "words"),
        [
            ("{", ToMeValueError, "cannot be read as settings of token merging"),
            ("[0.5]", ToMeValueError, r'must hold a JSON object such as \{"ratio": 0.5\}; got list'),
            ('{"ration": 0.5}', ToMeTypeError, "unknown setting 'ration'"),
            ('{"ratio": {"3": 0.5}}', ToMeValueError, "has level 3"),
            ('{"ratio": {"fine": 0.5}}', ToMeValueError, "has level 'fine'"),
            ('{"ratio": 1e999}', ToMeValueError, "give a finite number"),
        ],
    )
    def test_a_bad_file_is_told(self, content: str, error: type[ToMeError], words: str, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(error, match=words):
            ToMeConfig.load(tmp_path / "config.json")

    def test_a_missing_file_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(ToMeValueError, match=r"none\.json cannot be read"):
            ToMeConfig.load(tmp_path / "none.json")


def test_a_summary_names_what_is_not_usual() -> None:
    assert ToMeConfig(0.25).summary == "ratio 0.25"
    assert ToMeConfig(8 / 9, method="todo", sx=3, sy=3).summary == "ratio 0.8889, sx 3, sy 3, method todo"
    assert ToMeConfig({1: [0.5, 0.1]}, tile=16).summary == "ratio {'1': [0.5, 0.1]}, tile 16"


class TestPresets:
    @pytest.mark.parametrize("name", presets())
    def test_a_preset_applies_by_its_name(self, name: str) -> None:
        unet = apply_tome(tiny.unet(), name)
        assert unet.tome.config == ToMeConfig.preset(name)

    def test_there_are_three(self) -> None:
        assert presets() == ["balanced", "fast", "quality"]

    def test_another_name_is_refused(self) -> None:
        with pytest.raises(ToMeValueError, match="no preset 'best'; the presets are balanced, fast, quality"):
            ToMeConfig.preset("best")
        with pytest.raises(ToMeTypeError, match=r"ratio='best' .* the name of a preset \(balanced, fast, quality\)"):
            apply_tome(tiny.unet(), "best")

    def test_a_preset_and_settings_are_not_mixed(self) -> None:
        with pytest.raises(ToMeTypeError, match="a ToMeConfig or preset was given together with tile"):
            apply_tome(tiny.unet(), "balanced", tile=8)


def tokens_by_level(unet: Any, **given: Any) -> dict[str, int]:
    """The tokens that self-attention sees in one call, by block."""
    seen: dict[str, int] = {}
    hooks = []
    for name, layer in unet.named_sublayers():
        if name.endswith("attn1"):
            where = name.split(".transformer")[0]
            hooks.append(
                layer.to_q.register_forward_pre_hook(
                    lambda _, inputs, where=where: seen.__setitem__(where, inputs[0].shape[1])
                )
            )
    tiny.run_unet(unet, **given)
    for hook in hooks:
        hook.remove()
    return seen


FINEST, COARSER = "down_blocks.0.attentions.0", "down_blocks.1.attentions.0"


class TestInAModel:
    def test_each_level_has_its_ratio(self) -> None:
        seen = tokens_by_level(apply_tome(tiny.unet(), {1: 0.5, 2: 0.25}))
        assert (seen[FINEST], seen[COARSER]) == (128, 48)
        seen = tokens_by_level(apply_tome(tiny.unet(), {2: 0.5}))
        assert (seen[FINEST], seen[COARSER]) == (256, 32)

    def test_levels_that_the_model_lacks_are_told(self) -> None:
        with pytest.raises(NothingToMergeError, match=r"at the levels of ratio=\{4: 0.5\}; its blocks are at 1, 2"):
            apply_tome(tiny.unet(), {4: 0.5})
        apply_tome(tiny.unet(), {1: 0.5, 4: 0.5})

    @pytest.mark.parametrize(("timestep", "tokens"), [(999, 103), (750, 141), (500, 180), (0, 256)])
    def test_a_ramp_follows_the_timestep(self, timestep: int, tokens: int) -> None:
        unet = apply_tome(tiny.unet(), (0.6, 0.0))
        assert tokens_by_level(unet, timestep=timestep)[FINEST] == pytest.approx(tokens, abs=1)

    def test_outside_start_and_end_it_is_the_plain_model(self) -> None:
        unet = tiny.unet()
        plain = {at: tiny.run_unet(unet, timestep=at) for at in (900, 500, 100)}
        apply_tome(unet, 0.5, start=0.3, end=0.8)
        same = {at: np.array_equal(tiny.run_unet(unet, timestep=at), plain[at]) for at in plain}
        assert same == {900: True, 500: False, 100: True}

    def test_gradient_checkpointing_runs_blocks_again_at_their_ratio(self) -> None:
        """Also when another call, at another place of the schedule, came between."""

        def gradients(checkpointed: bool) -> np.ndarray:
            unet = apply_tome(tiny.unet(), (0.6, 0.1))
            unet.train()
            if checkpointed:
                unet.enable_gradient_checkpointing()
            latent = tiny.latent()
            latent.stop_gradient = False
            loss = unet(latent, paddle.to_tensor([900, 900]), tiny.text()).sample.square().mean()
            tiny.run_unet(unet, timestep=100)
            loss.backward()
            return latent.grad.numpy()

        if paddle.__version__.startswith("2."):
            pytest.skip("Paddle 2.6 has no recomputation on a CPU")
        np.testing.assert_allclose(gradients(True), gradients(False), rtol=1e-4, atol=1e-7)

    def test_a_model_that_does_not_tell_its_timestep_says_so(self) -> None:
        specimen = wuerstchen_prior.SPECIMEN
        model = specimen.build()
        with paddle.no_grad():
            plain = specimen.run(model).numpy()
            apply_tome(model, (0.6, 0.2))
            with pytest.warns(UserWarning, match="does not tell its timestep.*runs unmerged; give one ratio"):
                assert np.array_equal(specimen.run(model).numpy(), plain)

    def test_reuse_and_a_ramp_go_together(self) -> None:
        """A matching that is kept keeps its number of tokens, until a fresh one is made."""
        unet = apply_tome(tiny.unet(), (0.6, 0.0), reuse_steps=3)
        seen = [tokens_by_level(unet, timestep=at)[FINEST] for at in (900, 800, 700, 600, 500, 400)]
        assert seen[0] != seen[1] == seen[2]
        assert len(set(seen)) >= 3

    @pytest.mark.parametrize("settings", [dict(ratio=(0.6, 0.2)), dict(end=0.5), dict(min_similarity=0.5)])
    def test_a_program_cannot_follow_what_is_read_on_the_host(self, settings: dict[str, Any]) -> None:
        unet = apply_tome(tiny.unet(), **settings)
        specs = [InputSpec([2, 4, 16, 16], "float32"), InputSpec([1], "int64"), InputSpec(tiny.text().shape, "float32")]
        program = paddle.jit.to_static(unet, input_spec=specs, full_graph=True)
        with pytest.raises(ToMeValueError, match=r"cannot become part of a program.*before exporting"):
            program.forward.concrete_program  # noqa: B018  what to_static records, it records when asked


def test_the_second_pass_of_a_hires_workflow_has_settings_of_its_own() -> None:
    """Two pipelines share a UNet; each pass applies its own before it runs."""
    unet = tiny.unet()
    first, second = ToMeConfig(0.3), ToMeConfig(0.7, tile=8)
    apart = [
        tiny.run_unet(apply_tome(tiny.unet(), config), height=size, width=size)
        for config, size in ((first, 16), (second, 32))
    ]
    together = [
        tiny.run_unet(apply_tome(unet, config), height=size, width=size) for config, size in ((first, 16), (second, 32))
    ]
    assert all(np.array_equal(one, other) for one, other in zip(apart, together, strict=True))

"""``results``: what variants do, what is measured, and how a run resumes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from benchmarks import results
from benchmarks.onnx_kernels import AttnProcessor
from benchmarks.random_models import random_model
from benchmarks.variants import VARIANTS, apply_variant
from benchmarks.workloads import Case, load_workload
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.patching.blocks import find_blocks

TOKENS = 16 * 16
SMALL = ["--models", "sd15-tiny-random", "--attention", "plain"]
# Keys of self-attention at the two finest levels.
KEYS = {
    **dict.fromkeys(VARIANTS, (TOKENS // 2, TOKENS // 4)),
    "none": (TOKENS, TOKENS // 4),
    "preset-balanced": (TOKENS - int(TOKENS * 8 / 9), TOKENS // 4),
    "preset-quality": (TOKENS // 4, TOKENS // 4),
}


def bench(folder: Path, *arguments: str) -> None:
    results.main([*SMALL, "--output", str(folder), *arguments])


def run(unet: Any) -> np.ndarray:
    with paddle.no_grad():
        return unet(tiny.latent(2, 16, 16), 500, tiny.array((2, 7, 32), seed=2)).sample.numpy()


@pytest.fixture(scope="module")
def unet() -> Any:
    return random_model("sd15-tiny-random")


@pytest.mark.parametrize("name", VARIANTS)
def test_attention_sees_a_variants_tokens_and_nothing_is_left_behind(name: str, unet: Any) -> None:
    plain, before, keys = run(unet), tiny.snapshot(unet), {}
    hooks = [
        block.layer.attn1.to_k.register_forward_post_hook(
            lambda layer, inputs, output, level=block.level: keys.update({level: output.shape[1]})
        )
        for block in find_blocks(unet)
    ]
    with apply_variant(unet, VARIANTS[name], 0.5):
        output = run(unet)
    for hook in hooks:
        hook.remove()
    assert (keys[1], keys[2]) == KEYS[name]
    assert np.array_equal(output, plain) == (name == "none")
    assert np.isfinite(output).all()
    assert tiny.snapshot(unet) == before
    np.testing.assert_array_equal(run(unet), plain)


def test_every_run_has_the_same_inputs() -> None:
    model, run_steps = load_workload(Case("sd15-tiny-random", "float32", "cpu", 128, 2, steps=4))
    assert {type(block.layer.attn1.processor) for block in find_blocks(model)} == {AttnProcessor}
    inputs: list[list[np.ndarray]] = []
    model.register_forward_pre_hook(lambda layer, values: inputs.append([x.numpy() for x in values]))
    run_steps(4)
    run_steps(4)
    assert [int(timestep) for _, timestep in inputs[:4]] == [999, 749, 499, 249]
    for first, second in zip(inputs[:4], inputs[4:], strict=True):
        assert all(map(np.array_equal, first, second))


@pytest.mark.once
def test_rounds_are_measured_and_added_without_a_variant_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--sizes", "128", "64", "--variants", "ours", "port"]
    bench(tmp_path, *arguments, "--repeats", "1")
    first = (tmp_path / "results.jsonl").read_text()

    def refuse(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setitem(VARIANTS, "port", replace(VARIANTS["port"], apply=refuse))
    bench(tmp_path, *arguments, "--repeats", "2")
    assert (tmp_path / "results.jsonl").read_text().startswith(first)
    rows = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [(row["case"]["size"], row["variant"], row["rounds"], row["out_of_memory"]) for row in rows] == [
        (128, "none", 2, False), (128, "port 0.5", 0, True), (128, "ours 0.5", 2, False),
        (64, "none", 2, False), (64, "port 0.5", 0, True), (64, "ours 0.5", 2, False),
    ]  # fmt: skip
    for row in rows:
        if not row["out_of_memory"]:
            assert 0 < row["seconds"]["low"] <= row["seconds"]["median"] <= row["seconds"]["high"]
            assert row["speedup"]["median"] > 0
    page = (tmp_path / "results.md").read_text()
    assert "| port 0.5 | out of memory | - |" in page


@pytest.mark.skipif(paddle.get_device() != "cpu", reason="there is a GPU")
def test_what_needs_a_gpu_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--attention xformers needs a GPU"):
        bench(tmp_path, "--attention", "xformers", "--sizes", "64")
    with pytest.raises(UserError, match="sd3-random has flash attention alone"):
        bench(tmp_path, "--models", "sd3-random")
    with pytest.raises(SystemExit):
        bench(tmp_path, "--sizes", "100")

"""``compare`` with programs and schedulers that need a warm-up of their own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import paddle
import pytest

import tiny
from ppdiffusers_tome.compilation.model import CompiledModel
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
from tools.cli.comparison import compare, read_rows
from tools.cli.conftest import PROMPT, SMALL


@pytest.mark.skipif(paddle.__version__.startswith("2."), reason="compile_cpu needs Paddle 3")
def test_compiled_settings_are_warm_when_timed_and_have_no_column_of_memory(tmp_path, monkeypatch, capsys):
    pytest.importorskip("openvino")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    generate, make_program, is_timed = LoadedPipeline.generate, CompiledModel._make_program, []

    def note_what_is_timed(loaded: LoadedPipeline, *given: Any, **settings: Any) -> Any:
        is_timed[:] = [] if "after_step" in settings else [True]
        return generate(loaded, *given, **settings)

    def make(*given: Any) -> Any:
        assert not is_timed
        return make_program(*given)

    monkeypatch.setattr(LoadedPipeline, "generate", note_what_is_timed)
    monkeypatch.setattr(CompiledModel, "_make_program", make)
    given = ["--configs", "balanced", "--cache", "0.2", "--steps", "9", "--compile", "--prompt", PROMPT]
    assert compare(tmp_path / "a", *given) == 0
    assert "was compiled in" in (captured := capsys.readouterr()).err
    assert "computed by Paddle" not in captured.err
    assert "peak memory" not in captured.out
    assert {row["denoising_peak_bytes"] for row in read_rows(tmp_path / "a").values()} == {None}


def test_a_scheduler_that_cannot_run_one_step(tmp_path, capsys):
    """PNDM with Runge-Kutta steps, ppdiffusers' default, takes four or more; a warm-up needs one elsewhere."""
    model = Path(shutil.copytree(tiny.PHOTOGRAPHS, tmp_path / "model"))
    config = json.loads((model / "scheduler/scheduler_config.json").read_text())
    changed = {"_class_name": "PNDMScheduler", "skip_prk_steps": False}
    (model / "scheduler/scheduler_config.json").write_text(json.dumps(config | changed))
    index = json.loads((model / "model_index.json").read_text())
    (model / "model_index.json").write_text(json.dumps(index | {"scheduler": ["ppdiffusers", "PNDMScheduler"]}))
    given = ["--model", str(model), "--steps", "4", "--guidance-scale", "1", "--prompt", PROMPT]
    assert compare(tmp_path / "a", *given, "--ratios", "0.5") == 0
    assert compare(tmp_path / "b", *given, "--ratios", "--fewer-steps", "2") == 2
    assert "PNDMScheduler cannot run 2 steps here" in capsys.readouterr().err
    assert main(["tune", *SMALL, *given, "--configs", "balanced", "--output", str(tmp_path / "c")]) == 0

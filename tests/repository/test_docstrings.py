"""The examples of docstrings do what they say. Those that name a ``pipe`` or a ``unet`` get tiny ones."""

import doctest
import importlib
from typing import Any

import pytest
from ppdiffusers import StableDiffusionPipeline

import tiny
from pipelines.whole import text_parts

FILES = [path.relative_to(tiny.ROOT) for path in sorted((tiny.ROOT / "ppdiffusers_tome").rglob("*.py"))
         if any(">>>" in line and "+SKIP" not in line for line in path.read_text().splitlines())]  # fmt: skip


class TinyPipeline(StableDiffusionPipeline):
    def __call__(self, prompt: str) -> Any:
        return super().__call__(prompt, num_inference_steps=2, height=32, width=32, output_type="latent")


@pytest.mark.parametrize("path", FILES, ids=str)
def test_examples_do_what_they_say(path):
    pipe = tiny.pipeline(TinyPipeline, **text_parts())
    module = importlib.import_module(".".join(path.with_suffix("").parts))
    tested = doctest.testmod(module, extraglobs={"pipe": pipe, "unet": pipe.unet})
    assert tested.attempted
    assert not tested.failed

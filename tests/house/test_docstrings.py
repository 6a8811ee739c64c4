"""The examples of docstrings do what they say. Those that name a ``pipe`` or a ``unet`` get tiny ones."""

from __future__ import annotations

import doctest
import importlib
from typing import Any

import pytest
from ppdiffusers import StableDiffusionPipeline
from ppdiffusers.transformers import CLIPTokenizer

import tiny
from house.pages import ROOT
from ppdiffusers_tome.tools.demo_model import MODEL

# Some need a model that generates what a prompt asks for, and are skipped.
WITH_EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "ppdiffusers_tome").rglob("*.py"))
    if any(">>>" in line and "+SKIP" not in line for line in path.read_text(encoding="utf-8").splitlines())
]


class TinyPipeline(StableDiffusionPipeline):
    """Two steps at 32 pixels, whatever the words."""

    def __call__(self, prompt: str) -> Any:
        return super().__call__(prompt, num_inference_steps=2, height=32, width=32, output_type="latent")


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_do_what_they_say(module: str) -> None:
    tokenizer = CLIPTokenizer.from_pretrained(str(MODEL / "tokenizer"))
    encoder = tiny.text_encoder(vocab_size=len(tokenizer), max_position_embeddings=32)
    pipe = tiny.pipeline(TinyPipeline, text_encoder=encoder, tokenizer=tokenizer)
    tested = doctest.testmod(
        importlib.import_module(module), extraglobs={"pipe": pipe, "unet": pipe.unet}
    )
    assert tested.attempted
    assert not tested.failed

"""Every Python block of README and of the guides runs when it is copied alone, and docstrings do what they say."""

import doctest
import importlib
import re
import shutil
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import paddle
import ppdiffusers
import pytest

import tiny
from benchmarks.onnx_kernels import use_kernels
from pipelines.whole import text_parts
from ppdiffusers_tome.patching.models import list_models
from repository.pages import DOCS, README, ROOT, sections

NAMES = ("DiT", "StableDiffusion", "StableDiffusionControlNet", "StableDiffusionImg2Img")
FOLDERS = ("get-started", "guides", "reference")
BLOCKS = {
    f"{page.relative_to(ROOT).as_posix()}-{number}": block
    for page in [README, DOCS / "en" / "index.md", *(DOCS / "en" / name / "*.md" for name in FOLDERS)]
    for page in sorted(page.parent.glob(page.name))
    for number, block in enumerate(block for section in sections(page) for block in section.code)
    if re.match(r"(python|py)\n", block)
}


def _use_kernels(pipe: Any) -> None:
    """Take the place of a GPU's attention: 1024x1024 in 8 GiB."""
    for _, model in list_models(pipe, denoisers_only=False):
        use_kernels(model)


def _take_two_steps(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def call_briefly(*arguments: Any, **keywords: Any) -> Any:
        return call(*arguments, **(keywords | {"num_inference_steps": 2}))

    return call_briefly


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """Put the small models in the place of hub names, two steps in all images, and 64 pixels by default."""
    load_pipeline, load_model = ppdiffusers.DiffusionPipeline.from_pretrained, ppdiffusers.ModelMixin.from_pretrained

    def load(cls: type, name: str, **parts: Any) -> Any:
        if Path(name).is_dir() and Path(name).resolve() not in (tiny.PHOTOGRAPHS, tiny.CONTROLNET):
            return load_pipeline.__func__(cls, name, **parts)
        parts = {key: part for key, part in parts.items() if key != "paddle_dtype"}  # a CPU has float32 alone
        if issubclass(cls, ppdiffusers.ControlNetModel):
            return load_model.__func__(cls, str(tiny.CONTROLNET), **parts)
        pipe = load_pipeline.__func__(cls, str(tiny.PHOTOGRAPHS), **parts)
        pipe.unet.register_to_config(sample_size=8)  # what a pipeline takes its default size from
        pipe.set_progress_bar_config(disable=True)
        return pipe

    monkeypatch.setattr(ppdiffusers.DiffusionPipeline, "from_pretrained", classmethod(load))
    monkeypatch.setattr(ppdiffusers.ControlNetModel, "from_pretrained", classmethod(load))
    for name in ("FluxPipeline", "WanPipeline"):
        monkeypatch.setattr(ppdiffusers, name, ppdiffusers.StableDiffusionPipeline, raising=False)
    for cls in (getattr(ppdiffusers, f"{name}Pipeline") for name in NAMES):
        monkeypatch.setattr(cls, "__call__", _take_two_steps(cls.__call__))
        monkeypatch.setattr(cls, "enable_xformers_memory_efficient_attention", _use_kernels, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # a block that is copied runs in a clone
    shutil.copy(ROOT / "examples" / "motorcycle.jpg", "photo.png")


# As of a pipeline's config, which ppdiffusers warns of: nothing that a user does not do.
@pytest.mark.filterwarnings("error:Accessing config attribute:FutureWarning")
@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_runs_when_copied_alone(name):
    code = BLOCKS[name].partition("\n")[2]
    # Without it `apply_tome` is that of ppdiffusers' own port. Here the package is imported anyway.
    assert re.search(r"^(import|from) ppdiffusers_tome\b", code, re.MULTILINE)
    if "compile_cpu(" in code and paddle.__version__.startswith("2."):
        pytest.skip("compile_cpu needs Paddle 3")
    exec(compile(code, "block", "exec"), {"__name__": "__main__"})


FILES = [path.relative_to(tiny.ROOT) for path in sorted((tiny.ROOT / "ppdiffusers_tome").rglob("*.py"))
         if any(">>>" in line and "+SKIP" not in line for line in path.read_text().splitlines())]  # fmt: skip


class TinyPipeline(ppdiffusers.StableDiffusionPipeline):
    def __call__(self, prompt: str) -> Any:
        return super().__call__(prompt, num_inference_steps=2, height=32, width=32, output_type="latent")


@pytest.mark.parametrize("path", FILES, ids=str)
def test_examples_of_docstrings_do_what_they_say(path):
    """Those that name a ``pipe`` or a ``unet`` get tiny ones."""
    pipe = tiny.pipeline(TinyPipeline, **text_parts())
    module = importlib.import_module(".".join(path.with_suffix("").parts))
    tested = doctest.testmod(module, extraglobs={"pipe": pipe, "unet": pipe.unet})
    assert tested.attempted
    assert not tested.failed

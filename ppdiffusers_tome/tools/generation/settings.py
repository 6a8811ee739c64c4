"""The settings of images. Imports no Paddle."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.text import format_count
from ppdiffusers_tome.tools.generation.models import ModelSource

DTYPES = ("float32", "float16", "bfloat16")
SCHEDULERS = {
    "ddim": "DDIMScheduler", "dpmsolver++": "DPMSolverMultistepScheduler", "euler": "EulerDiscreteScheduler",
    "euler-a": "EulerAncestralDiscreteScheduler", "heun": "HeunDiscreteScheduler", "lcm": "LCMScheduler",
    "lms": "LMSDiscreteScheduler", "pndm": "PNDMScheduler",
}  # fmt: skip
MAX_SEED = 2**62
SIZE_MULTIPLE = 8


@dataclass(frozen=True)
class ImageSettings:
    """All that an image depends on besides its prompt."""

    model: ModelSource
    controlnet: ModelSource | None  # None for text-to-image
    photo: Path | None  # whose edges guide; None also where the command has edges of its own
    photo_checksum: int | None  # of its file, as another may take its name
    tome: ToMeConfig
    height: int | None  # in pixels; None for the model's native size
    width: int | None
    steps: int
    guidance_scale: float | None  # None for the default of the pipeline's class
    scheduler: str | None  # a class of ppdiffusers; None for the model's
    seed: int  # of the first image
    negative_prompt: str | None
    controlnet_scale: float
    dtype: str  # of ``DTYPES``
    xformers: bool
    compile: str | None  # of ``ppdiffusers_tome.machine.PRECISIONS``; None for models that are not compiled

    @property
    def defaults(self) -> list[str]:
        """The names of settings that are left to the model."""
        return [name for name in ("height", "width", "guidance_scale", "scheduler") if getattr(self, name) is None]

    def describe(self) -> dict[str, Any]:
        """Return what images share besides merging as plain values."""
        control = None
        if self.controlnet is not None:
            photo = {"photo": self.photo and self.photo.name, "photo_checksum": self.photo_checksum}
            control = {**self.controlnet.describe(), "scale": self.controlnet_scale, **photo}
        return {
            **self.model.describe(), "controlnet": control, "height": self.height, "width": self.width,
            "steps": self.steps, "guidance_scale": self.guidance_scale, "scheduler": self.scheduler,
            "negative_prompt": self.negative_prompt, "dtype": self.dtype, "xformers": self.xformers,
            "compile": self.compile,
        }  # fmt: skip

    def describe_image(self, prompt: str, seed: int) -> dict[str, Any]:
        """Return what an image depends on as plain values."""
        tome = None if self.tome.changes_nothing else self.tome.to_dict()
        return {"prompt": prompt, "seed": seed, "tome": tome, **self.describe()}


def format_run(run: Mapping[str, Any]) -> str:
    """Format what ``ImageSettings.describe`` returns as one line."""
    words = [
        f"{run['model']} model", f"{run['width']}x{run['height']} pixels", format_count(run["steps"], "step"),
        run["scheduler"], f"guidance {run['guidance_scale']:g}", run["dtype"],
    ]  # fmt: skip
    if run["controlnet"] is not None:
        words.append(f"ControlNet {run['controlnet']['model']}")
    if run["xformers"]:
        words.append("xformers")
    if run["compile"] is not None:
        words.append(f"compiled in {run['compile']}")
    return ", ".join(words)

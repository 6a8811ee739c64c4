"""Sources of models: the bundled ones, folders and hub names.

Imports no Paddle, so that a wrong name or a missing part is reported at once, before a file of the folder is loaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.demo_model import CONTROLNET, DIT, MODEL
from ppdiffusers_tome.tools.generation.class_labels import PIPELINE
from ppdiffusers_tome.tools.generation.weights import is_torch, read_json

BUNDLED, BUNDLED_DIT = "bundled", "bundled-dit"

_DENOISERS = ("unet", "transformer", "prior", "decoder")  # the format of their weights is that of all
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class ModelSource:
    """The source of a model.

    Attributes:
        name: as the user called it.
        folder: its folder; None for a hub's model, which is downloaded.
        from_diffusers: True for PyTorch's weights; None leaves it to ppdiffusers (``FROM_DIFFUSERS``).
        bundled: True for a model of this package.
        vae: the folder of its VAE where that is not inside its own folder.
    """

    name: str
    folder: Path | None = None
    from_diffusers: bool | None = None
    bundled: bool = False
    vae: Path | None = None

    @property
    def arguments(self) -> tuple[str, dict[str, Any]]:
        """The name and the keywords for ``from_pretrained``."""
        keywords = {} if self.from_diffusers is None else {"from_diffusers": self.from_diffusers}
        return str(self.folder or self.name), keywords


def find_model(name: str, *, any_kind: bool = False, class_labels: bool = False) -> ModelSource:
    """Find a pipeline.

    Args:
        name: ``bundled``, ``bundled-dit``, a folder, or a hub name such as ``runwayml/stable-diffusion-v1-5``.
        any_kind: accept pipelines that cannot generate from a prompt, too.
        class_labels: accept a DiTPipeline, too.
    """
    source = _find(name, "--model", {BUNDLED: MODEL, BUNDLED_DIT: DIT}, "a pipeline's", "model_index.json")
    folder = source.folder
    if folder is None:
        return source
    index = read_json(folder / "model_index.json")
    # A part is a library and a class of it; without either, the pipeline lacks it.
    parts = [name for name, value in index.items() if isinstance(value, list) and value[:1] != [None]]
    kind = str(index.get("_class_name"))
    if kind.startswith("PaddleInfer"):
        raise UserError(
            f"--model {name} is an exported {kind}, whose settings are fixed; load it in Python with "
            f"ppdiffusers_tome.export.pipelines.load_exported({name!r}), or give the model that was exported"
        )
    if not any_kind and not (class_labels and kind == PIPELINE) and not {"unet", "vae"} <= {*parts}:
        raise make_unsupported_error(name, kind)
    if source.bundled:
        return source
    denoiser = next((part for part in _DENOISERS if part in parts), next(iter(parts), ""))
    return replace(source, from_diffusers=is_torch(folder / denoiser))


def find_controlnet(name: str) -> ModelSource:
    """Find a ControlNet: ``bundled``, a folder, or a hub name such as ``lllyasviel/sd-controlnet-canny``."""
    source = _find(name, "--controlnet", {BUNDLED: CONTROLNET}, "a ControlNet's", "config.json")
    if source.folder is None or source.bundled:
        return source
    return replace(source, from_diffusers=is_torch(source.folder))


def make_unsupported_error(name: str, class_name: object) -> UserError:
    """Make the error for a pipeline that cannot generate from a prompt."""
    return UserError(
        f"--model {name} is a {class_name} without a unet and a vae; give a text-to-image pipeline such as Stable "
        "Diffusion"
    )


def _find(name: str, option: str, bundled: Mapping[str, Path], owner: str, index: str) -> ModelSource:
    """Find the folder, with a file ``index``, or the hub name of an option."""
    # os.path returns False for names that are no paths, where Path raises: too long, or with a null byte.
    folder = Path(os.path.expanduser(bundled.get(name, Path(name))))
    if not os.path.isdir(folder):
        if name not in bundled and not os.path.exists(folder) and _HUB_NAME.fullmatch(name):
            return ModelSource(name)
        fault = "is a file" if os.path.exists(folder) else "does not exist"
        accepted = f"a hub name or {' or '.join(map(repr, bundled))}"
        raise UserError(f"{option} {name} {fault}; give {owner} folder, {accepted}")
    if folder.resolve() in [path.resolve() for path in bundled.values()]:
        vae = MODEL / "vae" if folder.resolve() == DIT.resolve() else None
        return ModelSource(name, folder, False, bundled=True, vae=vae)
    if not (folder / index).is_file():
        raise UserError(f"{option} {name} has no {index}; give {owner} folder, as save_pretrained writes it")
    return ModelSource(name, folder)

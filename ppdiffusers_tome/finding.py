"""Finding models: the bundled one, folders in ppdiffusers' or diffusers' format, hub names.

Knows no Paddle, so that a wrong name or a missing part is told at once.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError

BUNDLED = "bundled"

_DENOISERS = ("unet", "transformer", "prior", "decoder")  # their weights tell the format of all
_DEMO = Path(__file__).parent / "demo"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_PADDLE_WEIGHTS = ("diffusion_paddle_model*", "model_state*.pdparams*")
_TORCH_WEIGHTS = ("diffusion_pytorch_model*",)
_TEXT_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "model_state*.pdparams")


@dataclass(frozen=True)
class Source:
    """Where a model comes from.

    Attributes:
        name: what the user called it.
        folder: where it lies; None when it is fetched from a hub.
        from_diffusers: True when its weights are PyTorch's; None leaves it to ppdiffusers (``FROM_DIFFUSERS``).
        bundled: True for what comes with this package.
    """

    name: str
    folder: Path | None
    from_diffusers: bool | None
    bundled: bool = False

    @property
    def arguments(self) -> tuple[str, dict[str, Any]]:
        """The name and the keywords for ``from_pretrained``."""
        keywords = {} if self.from_diffusers is None else {"from_diffusers": self.from_diffusers}
        return str(self.folder or self.name), keywords


def find_model(name: str, *, any_kind: bool = False) -> Source:
    """Find a pipeline.

    Args:
        name: ``bundled``, a folder, or a hub name such as ``runwayml/stable-diffusion-v1-5``.
        any_kind: take pipelines too that cannot draw from a prompt.

    Raises:
        UserError: there is no such folder, or a part of the pipeline is missing from it.
    """
    source = _find(name, "--model", _DEMO / "model", "a pipeline's", "model_index.json")
    if source.folder is None:
        return source
    index = _read_json(source.folder / "model_index.json")
    parts = {key: value for key, value in index.items() if isinstance(value, list) and value[0] is not None}
    if not any_kind and not {"unet", "vae"} <= parts.keys():
        raise UserError(
            f"--model {name} is a {index.get('_class_name')} without a unet and a vae; give a text-to-image pipeline "
            "such as Stable Diffusion"
        )
    for part, (_, class_name) in parts.items():
        _check_part(source.folder / part, class_name)
    denoiser = next((part for part in _DENOISERS if part in parts), next(iter(parts), ""))
    return Source(name, source.folder, _is_torch(source.folder / denoiser), source.bundled)


def find_controlnet(name: str) -> Source:
    """Find a ControlNet: ``bundled``, a folder, or a hub name such as ``lllyasviel/sd-controlnet-canny``.

    Raises:
        UserError: there is no such folder, or its configuration or weights are missing.
    """
    source = _find(name, "--controlnet", _DEMO / "controlnet", "a ControlNet's", "config.json")
    if source.folder is None:
        return source
    _check_part(source.folder, "ControlNetModel")
    return Source(name, source.folder, _is_torch(source.folder), source.bundled)


def _find(name: str, option: str, bundled: Path, whose: str, index: str) -> Source:
    """The folder or hub name that a word stands for; ``index`` is the file that every such folder has."""
    folder = bundled if name == BUNDLED else Path(name).expanduser()
    if not folder.is_dir():
        if folder.exists():
            raise UserError(f"{option} {name} is a file; give {whose} folder, a hub name or '{BUNDLED}'")
        if _HUB_NAME.fullmatch(name):
            return Source(name, None, None)
        raise UserError(f"{option} {name} does not exist; give {whose} folder, a hub name or '{BUNDLED}'")
    if not (folder / index).is_file():
        raise UserError(f"{option} {name} has no {index}; give {whose} folder, as save_pretrained writes it")
    return Source(name, folder, None, bundled=folder.resolve() == bundled.resolve())


def _check_part(folder: Path, class_name: str) -> None:
    """One part of a pipeline is there: its folder, its configuration and, where it is a model, its weights."""
    kind = "a ControlNet" if class_name == "ControlNetModel" else "a pipeline"
    if not folder.is_dir() or not any(folder.iterdir()):
        raise UserError(f"{folder} of {kind} ({class_name}) is missing or empty; copy the model again, whole")
    if "Tokenizer" in class_name or "Processor" in class_name or "Extractor" in class_name:
        return
    config = "scheduler_config.json" if "Scheduler" in class_name else "config.json"
    if not (folder / config).is_file():
        raise UserError(f"{folder / config} of {kind} ({class_name}) is missing; copy the model again, whole")
    if "Scheduler" not in class_name and not _has(folder, *_PADDLE_WEIGHTS, *_TORCH_WEIGHTS, *_TEXT_WEIGHTS):
        raise UserError(f"{folder} of {kind} ({class_name}) holds no weights; copy the model again, whole")


def _is_torch(folder: Path) -> bool:
    """True when a model's weights are diffusers' (PyTorch's); ppdiffusers' own are preferred where both are."""
    return _has(folder, *_TORCH_WEIGHTS) and not _has(folder, *_PADDLE_WEIGHTS)


def _has(folder: Path, *patterns: str) -> bool:
    return any(path.stat().st_size for pattern in patterns for path in folder.glob(pattern))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); copy the model again, whole") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no settings of a pipeline; copy the model again, whole")
    return content

"""Sources of models: the bundled ones, folders and hub names.

Imports no Paddle, so that a wrong name is reported at once.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.demo_model import CONTROLNET, DIT, EMOJI, EMOJI_PROMPTS, MODEL, PROMPTS

BUNDLED, BUNDLED_DIT, BUNDLED_EMOJI = "bundled", "bundled-dit", "bundled-emoji"

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class ModelSource:
    """The source of a model."""

    name: str  # as the user called it; ``label`` is for what others may see
    folder: Path | None = None  # None for a hub's model, which is downloaded
    bundled: bool = False  # with this package, and knows a few photographs
    vae: Path | None = None  # its folder where that is not inside of the model's
    trusts_code: bool = False  # run the Python files that its index names
    is_emoji: bool = False

    @property
    def prompts(self) -> tuple[str, ...]:
        """The default of commands."""
        return EMOJI_PROMPTS if self.is_emoji else PROMPTS

    @property
    def label(self) -> str:
        """The name in images: of a folder its last part alone."""
        is_path = self.folder is not None and self.name not in (BUNDLED, BUNDLED_DIT, BUNDLED_EMOJI)
        return Path(os.path.abspath(os.path.expanduser(self.name))).name if is_path else self.name


def find_model(name: str, *, trusts_code: bool = False) -> ModelSource:
    """Find a pipeline: bundled, a folder, or a hub name."""
    bundled = {BUNDLED: MODEL, BUNDLED_DIT: DIT, BUNDLED_EMOJI: EMOJI}
    source = _find(name, "--model", bundled, "a pipeline's", "model_index.json")
    return replace(source, trusts_code=trusts_code)


def find_controlnet(name: str) -> ModelSource:
    """Find a ControlNet: bundled, a folder, or a hub name."""
    source = _find(name, "--controlnet", {BUNDLED: CONTROLNET}, "a ControlNet's", "config.json")
    if source.folder is not None:
        with suppress(ValueError, AttributeError):  # of a damaged config, on which loading has its say
            kind = json.loads((source.folder / "config.json").read_bytes()).get("_class_name")
            if kind not in (None, "ControlNetModel"):  # of which ppdiffusers would draw the weights that a folder lacks
                raise UserError(f"--controlnet {name} holds a {kind}; give a folder of a ControlNetModel")
    return source


def _find(name: str, option: str, bundled: Mapping[str, Path], owner: str, index: str) -> ModelSource:
    """Find a folder that has ``index``, or a hub name."""
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
        if folder.resolve() == EMOJI.resolve():
            return ModelSource(name, folder, is_emoji=True)
        return ModelSource(name, folder, bundled=True, vae=vae)
    if not (folder / index).is_file():
        raise UserError(f"{option} {name} has no {index}; give {owner} folder, as save_pretrained writes it")
    return ModelSource(name, folder)

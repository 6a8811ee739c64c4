"""What can be exported and with what, told before anything slow is imported. Knows no Paddle."""

from __future__ import annotations

import importlib.util

from ppdiffusers_tome.errors import ToMeValueError, UserError
from ppdiffusers_tome.export.installed import installed_version
from ppdiffusers_tome.settings.config import ToMeConfig

TOLERANCE = 1e-4
INSTALL = 'pip install "paddle2onnx>=1.3,<2" onnxruntime'


def require_exportable(config: ToMeConfig, whose: str = "") -> None:
    """A program fixes how many tokens merge, so what decides it while it runs cannot be part of one.

    Args:
        config: the settings.
        whose: they are, to be named in the error, such as " of controlnet".

    Raises:
        ToMeValueError: the settings hold such a thing.
    """
    for found, what, remedy in (
        (config.uses_progress, "a ratio that changes over the denoising, start or end", "give one ratio for all of it"),
        (config.min_similarity is not None, "min_similarity", "leave it out"),
    ):
        if found:
            raise ToMeValueError(f"{what}{whose} cannot be exported: a program fixes how many tokens merge; {remedy}")


def require_onnx() -> None:
    """What is installed converts programs. Imports none of it, so that it is told at once.

    Raises:
        UserError: it does not.
    """
    paddle = installed_version("paddlepaddle") or installed_version("paddlepaddle-gpu") or "none"
    if not paddle.startswith("2."):
        raise UserError(
            f"Paddle {paddle} cannot export for ONNX: paddle2onnx for Paddle 3 converts no UNet, merged or not; export "
            f"with Paddle 2.6.2, and {INSTALL}"
        )
    converter = installed_version("paddle2onnx") or "none"
    if not converter.startswith("1."):
        raise UserError(
            f"exporting for ONNX with Paddle {paddle} takes paddle2onnx 1.3, and {converter} is installed; {INSTALL}"
        )
    if importlib.util.find_spec("onnxruntime") is None:
        raise UserError(f"exporting for ONNX checks what it wrote with onnxruntime, which is not installed; {INSTALL}")

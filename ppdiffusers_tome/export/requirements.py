"""Requirements of an export, checked before slow imports. Imports no Paddle."""

from __future__ import annotations

import importlib.util
from importlib import metadata

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.settings.config import ToMeConfig

TOLERANCE = 1e-4


def require_exportable(config: ToMeConfig, denoiser: str = "") -> None:
    """Refuse settings that need values known only at run time.

    Raises:
        ToMeValueError: the settings cannot be exported.
    """
    refused = {
        "a ratio that changes over the denoising, start or end": config.uses_progress,
        "min_similarity": config.min_similarity is not None,
        "cache": bool(config.cache),
    }
    for setting in (name for name, is_given in refused.items() if is_given):
        owner = f" of {denoiser}" if denoiser else ""
        raise ToMeValueError(
            f"{setting}{owner} cannot be exported: a program does the same in every step; give one ratio alone"
        )


def require_onnx() -> None:
    """Refuse installed packages that cannot convert programs for ONNX, without importing them.

    Raises:
        ToMeValueError: a package is absent or of the wrong version.
    """
    paddle = installed_version("paddlepaddle") or installed_version("paddlepaddle-gpu") or "none"
    converter = installed_version("paddle2onnx") or "none"
    has_versions = paddle.startswith("2.") and converter.startswith("1.")
    if not has_versions or importlib.util.find_spec("onnxruntime") is None:
        raise ToMeValueError(
            f"Paddle {paddle} cannot export for ONNX with paddle2onnx {converter}: it takes Paddle 2.6.2 and "
            'pip install "paddle2onnx>=1.3,<2" onnxruntime, as paddle2onnx for Paddle 3 converts no UNet'
        )


def installed_version(package: str) -> str | None:
    """Return a package's version by its registry name, or None without it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

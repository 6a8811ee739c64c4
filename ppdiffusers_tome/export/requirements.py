"""Requirements of an export, checked before slow imports. Imports no Paddle."""

from __future__ import annotations

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

"""A node that merges tokens in a pipeline of PaddleMIX's ComfyUI_ppdiffusers."""

from dataclasses import replace

from ppdiffusers_tome import ToMeConfig, ToMeError, shared_copy
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.presets import PRESETS

CUSTOM, OFF = "ratio and method", "off"


class PaddleTokenMerging:
    """A node between a loader and the samplers.

    ComfyUI passes one pipeline to all nodes after a loader and keeps it for later runs, and PaddleMIX's samplers build
    a new pipeline from its components. Settings are therefore applied to a copy of the denoiser that shares its
    weights: other branches stay unmerged, and settings do not accumulate.
    """

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802  ComfyUI's name
        about = "; ".join(f"{name}: {method.about}" for name, method in METHODS.items())
        progress = {"min": 0.0, "max": 1.0, "step": 0.05}
        return {
            "required": {
                "sd_pipe": ("PIPELINE", {"tooltip": "A pipeline of ppdiffusers; it stays unchanged."}),
                "settings": (
                    [*PRESETS, CUSTOM, OFF],
                    {"default": "balanced", "tooltip": f"A preset; '{CUSTOM}' for those below; '{OFF}': no merging."},
                ),
                "ratio": (
                    "FLOAT",
                    {
                        "default": 0.5, "min": 0.0, "max": 0.75, "step": 0.05,
                        "tooltip": f"Fraction of the tokens to merge; only with '{CUSTOM}'.",
                    },
                ),
                "method": (list(METHODS), {"default": "tome", "tooltip": f"Only with '{CUSTOM}'. {about}."}),
                "start": ("FLOAT", {**progress, "default": 0.0, "tooltip": "Start of merging: 0 is pure noise."}),
                "end": ("FLOAT", {**progress, "default": 1.0, "tooltip": "End of merging: 1 is the final image."}),
            },
            # Optional, so that older workflows still run.
            "optional": {
                "cache": (
                    "FLOAT",
                    {
                        "default": 0.0, "min": 0.0, "max": 0.8, "step": 0.05,
                        "tooltip": f"Fraction of the steps that skip most layers; '{OFF}' and 0.2 keep the image.",
                    },
                ),
            },
        }  # fmt: skip

    RETURN_TYPES = ("PIPELINE", "STRING")
    RETURN_NAMES = ("sd_pipe", "what_merges")
    OUTPUT_TOOLTIPS = ("For samplers.", "The settings, and the number of merging blocks of each denoiser.")
    FUNCTION = "merge"
    CATEGORY = "🚢 paddlemix/ppdiffusers/token merging"
    DESCRIPTION = "Caches over steps, or merges similar tokens: faster, or in less memory."

    @classmethod
    def VALIDATE_INPUTS(cls, settings, ratio, method, start, end, cache=0.0):  # noqa: N802  ComfyUI's name
        """Return True or an error message; inputs from other nodes are still None."""
        if None in (settings, ratio, method, start, end, cache):
            return True
        try:
            _make_config(settings, ratio, method, start, end, cache)
        except ToMeError as error:
            return str(error)
        return True

    def merge(self, sd_pipe, settings, ratio, method, start, end, cache=0.0):
        """Return the merged pipeline, and its settings and merging blocks as text."""
        config = _make_config(settings, ratio, method, start, end, cache)
        pipe = shared_copy(sd_pipe)
        if config is None:
            return pipe, "nothing merges"
        return pipe, str(pipe.apply_tome(config).tome)


def _make_config(settings, ratio, method, start, end, cache):
    """Return the ToMeConfig of the inputs; None for neither merging nor a cache.

    Raises:
        ToMeError: the inputs are invalid or conflict.
    """
    if settings == OFF:
        config = ToMeConfig(0.0, cache=cache)
    elif settings == CUSTOM:
        config = ToMeConfig(ratio=ratio, method=method, start=start, end=end, cache=cache)
    else:
        config = replace(ToMeConfig.preset(settings), start=start, end=end, cache=cache)
    return config if config.ratio or config.cache else None

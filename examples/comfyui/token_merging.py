"""A node between a loader and the samplers of PaddleMIX's ComfyUI_ppdiffusers: returns the pipeline merged."""

from dataclasses import replace

from ppdiffusers_tome import ToMeConfig, ToMeError, shared_copy
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.presets import presets

OWN, OFF = "ratio and method", "off"


class PaddleTokenMerging:
    """ComfyUI hands one pipeline to every node behind a loader, keeps it for later runs, and PaddleMIX's samplers make
    a pipeline of its components anew. So the settings are put on a denoiser of its own, which shares the weights: other
    branches stay unmerged, and other settings do not add up.
    """

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802  ComfyUI's name
        about = "; ".join(f"{name}: {method.about}" for name, method in METHODS.items())
        progress = {"min": 0.0, "max": 1.0, "step": 0.05}
        return {
            "required": {
                "sd_pipe": ("PIPELINE", {"tooltip": "A pipeline of ppdiffusers; it is left as it is."}),
                "settings": (
                    [*presets(), OWN, OFF],
                    {"default": "balanced", "tooltip": f"A preset; or '{OWN}', as set below; or '{OFF}', unmerged."},
                ),
                "ratio": (
                    "FLOAT",
                    {
                        "default": 0.5, "min": 0.0, "max": 0.75, "step": 0.05,
                        "tooltip": f"Share of the tokens to merge away; with '{OWN}' only.",
                    },
                ),
                "method": (list(METHODS), {"default": "tome", "tooltip": f"With '{OWN}' only. {about}."}),
                "start": ("FLOAT", {**progress, "default": 0.0, "tooltip": "Merge from here on: 0 is pure noise."}),
                "end": ("FLOAT", {**progress, "default": 1.0, "tooltip": "Merge up to here: 1 is the image."}),
            },
            # Optional, so that workflows saved before it existed still run.
            "optional": {
                "cache": (
                    "FLOAT",
                    {
                        "default": 0.0, "min": 0.0, "max": 0.8, "step": 0.05,
                        "tooltip": "Fraction of the steps to skip with a cache over steps; 0 for none.",
                    },
                ),
            },
        }  # fmt: skip

    RETURN_TYPES = ("PIPELINE", "STRING")
    RETURN_NAMES = ("sd_pipe", "what_merges")
    OUTPUT_TOOLTIPS = ("For samplers.", "Which settings, and how many blocks of each denoiser merge.")
    FUNCTION = "merge"
    CATEGORY = "🚢 paddlemix/ppdiffusers/token merging"
    DESCRIPTION = "Merges redundant tokens while pictures are drawn: faster, less memory, nearly the same picture."

    @classmethod
    def VALIDATE_INPUTS(cls, settings, ratio, method, start, end, cache=0.0):  # noqa: N802  ComfyUI's name
        """True, or what is wrong; before anything is loaded. What another node will give is None as yet."""
        if None in (settings, ratio, method, start, end, cache):
            return True
        try:
            _config(settings, ratio, method, start, end, cache)
        except ToMeError as error:
            return str(error)
        return True

    def merge(self, sd_pipe, settings, ratio, method, start, end, cache=0.0):
        """Returns the merged pipeline, and what merges in it, as text."""
        config = _config(settings, ratio, method, start, end, cache)
        pipe = shared_copy(sd_pipe)
        if config is None:
            return pipe, "nothing merges"
        applied = pipe.apply_tome(config).tome
        blocks = ", ".join(f"{number} blocks of {denoiser}" for denoiser, number in applied.blocks.items())
        return pipe, f"{config.summary}: {blocks}"


def _config(settings, ratio, method, start, end, cache):
    """What the widgets say; None for nothing. Raises ToMeError."""
    if settings == OFF:
        return None
    if settings == OWN:
        return ToMeConfig(ratio=ratio, method=method, start=start, end=end, cache=cache)
    return replace(ToMeConfig.preset(settings), start=start, end=end, cache=cache)

"""A loader for the small model of photographs that comes with ppdiffusers_tome: nothing to download."""

import numpy as np
import paddle
from ppdiffusers import DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from ppdiffusers.models.unet_2d_condition import UNet2DConditionOutput

from ppdiffusers_tome.tools.generation.model_sources import BUNDLED, find_model

# What PaddleMIX's samplers put in place of a pipeline's scheduler, whichever of theirs is chosen.
STABLE_DIFFUSION = dict(
    beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=False,
    steps_offset=1,
)  # fmt: skip


class PaddleBundledModelLoader:
    """Stands where PaddleMIX's loader of checkpoints stands."""

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802  ComfyUI's name
        return {"required": {}}

    RETURN_TYPES = ("PIPELINE",)
    RETURN_NAMES = ("sd_pipe",)
    OUTPUT_TOOLTIPS = ("For token merging, samplers and decoders.",)
    FUNCTION = "load"
    CATEGORY = "🚢 paddlemix/ppdiffusers/token merging"
    DESCRIPTION = "The small model of ten photographs that comes with ppdiffusers_tome, for 512x512 and cfg 1.5."

    def load(self):
        """Returns the pipeline, which draws with the schedulers of PaddleMIX's samplers."""
        folder = str(find_model(BUNDLED).folder)
        pipe = StableDiffusionPipeline.from_pretrained(folder)
        trained, pipe.scheduler = pipe.scheduler, DDIMScheduler(**STABLE_DIFFUSION)
        pipe.unet.__class__ = NoiseUNet
        pipe.unet.trained, pipe.unet.asked = (_signal(scheduler) for scheduler in (trained, pipe.scheduler))
        return (pipe,)


class NoiseUNet(UNet2DConditionModel):
    """The bundled model's UNet, answering as Stable Diffusion 1.5's does: with the noise, at its timesteps.

    It was trained on other timesteps and to predict v, which together with the latent tells the noise.
    """

    def forward(self, sample, timestep, *rest, return_dict=True, **named):
        """As of ppdiffusers' UNet. The timestep becomes the one that has as much noise in training."""
        signal = np.interp(np.asarray(timestep, "float64").reshape(-1), range(len(self.asked)), self.asked)
        same = np.interp(-signal, -self.trained, range(len(self.trained)))  # np.interp wants what grows
        same = paddle.to_tensor(same, dtype="float32")
        velocity = super().forward(sample, same, *rest, return_dict=False, **named)[0]
        signal = paddle.to_tensor(signal, dtype=sample.dtype).reshape([-1, 1, 1, 1])
        noise = signal.sqrt() * velocity + (1 - signal).sqrt() * sample
        return UNet2DConditionOutput(sample=noise) if return_dict else (noise,)


def _signal(scheduler):
    """The share of the picture in the variance of a latent, at each timestep."""
    return np.asarray(scheduler.alphas_cumprod, "float64")

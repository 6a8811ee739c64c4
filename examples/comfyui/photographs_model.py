"""A loader for the small model of photographs in this repository."""

from pathlib import Path

import numpy as np
import paddle
from ppdiffusers import DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from ppdiffusers.models.unet_2d_condition import UNet2DConditionOutput

FOLDER = Path(__file__).resolve().parents[1] / "models" / "photographs"
# The noise schedule of all of PaddleMIX's samplers, which replace the pipeline's scheduler.
STABLE_DIFFUSION = dict(
    beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=False,
    steps_offset=1,
)  # fmt: skip


class PaddlePhotographsLoader:
    """A node in place of PaddleMIX's checkpoint loader."""

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802  ComfyUI's name
        return {"required": {}}

    RETURN_TYPES = ("PIPELINE",)
    RETURN_NAMES = ("sd_pipe",)
    OUTPUT_TOOLTIPS = ("For token merging, samplers and decoders.",)
    FUNCTION = "load"
    CATEGORY = "🚢 paddlemix/ppdiffusers/token merging"
    DESCRIPTION = "The small model of ten photographs in ppdiffusers_tome's repository, for 512x512 and cfg 1.5."

    def load(self):
        """Return the pipeline, adapted to the schedulers of PaddleMIX's samplers."""
        if not FOLDER.is_dir():
            raise FileNotFoundError(f"{FOLDER} is missing: link the nodes' folder from a clone (ln -s), do not copy it")
        pipe = StableDiffusionPipeline.from_pretrained(str(FOLDER))
        training_scheduler, pipe.scheduler = pipe.scheduler, DDIMScheduler(**STABLE_DIFFUSION)
        pipe.unet.__class__ = NoiseUNet
        pipe.unet.training_signal = _compute_signal(training_scheduler)
        pipe.unet.sampling_signal = _compute_signal(pipe.scheduler)
        return (pipe,)


class NoiseUNet(UNet2DConditionModel):
    """The model's UNet with the timesteps and outputs of Stable Diffusion 1.5.

    It was trained on another noise schedule and to predict v. The noise follows from v and the latent.
    """

    def forward(self, sample, timestep, *args, return_dict=True, **kwargs):
        """Predict the noise, at the training timestep of the same noise level."""
        timesteps = np.arange(len(self.sampling_signal))
        signal = np.interp(np.asarray(timestep, "float64").reshape(-1), timesteps, self.sampling_signal)
        # The signals are negated because np.interp needs increasing values.
        equivalent = np.interp(-signal, -self.training_signal, np.arange(len(self.training_signal)))
        equivalent = paddle.to_tensor(equivalent, dtype="float32")
        velocity = super().forward(sample, equivalent, *args, return_dict=False, **kwargs)[0]
        signal = paddle.to_tensor(signal, dtype=sample.dtype).reshape([-1, 1, 1, 1])
        noise = signal.sqrt() * velocity + (1 - signal).sqrt() * sample
        return UNet2DConditionOutput(sample=noise) if return_dict else (noise,)


def _compute_signal(scheduler):
    """Return the image's fraction of a latent's variance at every timestep."""
    return np.asarray(scheduler.alphas_cumprod, "float64")

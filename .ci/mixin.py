"""Draw pictures with the installed package as a program does: import it, mix it in, apply it, take it off."""

from importlib import metadata
from pathlib import Path

import numpy as np
import paddle
from ppdiffusers import StableDiffusionPipeline

import ppdiffusers_tome


class Pipeline(ppdiffusers_tome.ToMeMixin, StableDiffusionPipeline):
    pass


def draw() -> np.ndarray:
    paddle.seed(0)
    return pipe("a photo of a cat", height=128, width=128, num_inference_steps=2, output_type="np").images[0]


assert ppdiffusers_tome.__version__ == metadata.version("ppdiffusers-tome")
assert "site-packages" in Path(ppdiffusers_tome.__file__).parts
pipe = Pipeline.from_pretrained(str(Path(__file__).parents[1] / "examples/models/photographs"))
unmerged = draw()
merged = pipe.apply_tome("balanced") and draw()
assert sum(pipe.tome.blocks.values()) > 0
pipe.remove_tome()
assert 0 < abs(merged - unmerged).mean() < 0.1
assert (draw() == unmerged).all()
print(f"the mixin merges: mean difference {abs(merged - unmerged).mean():.4f}")

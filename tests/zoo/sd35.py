"""SD3Transformer2DModel as in 3.5: norms of queries and keys, a second attention."""

from dataclasses import replace

from zoo import sd3
from zoo.specimen import kernels_anywhere

SPECIMEN = replace(
    sd3.SPECIMEN, about="Stable Diffusion 3.5", since="0.29.1", pipelines=None, mended=kernels_anywhere,
    config={**sd3.SPECIMEN.config, "dual_attention_layers": (0,), "qk_norm": "rms_norm"},
)  # fmt: skip

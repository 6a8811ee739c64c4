"""CogVideoXTransformer3DModel as in the model of 5 billion parameters, whose positions are rotary."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zoo import cogvideox
from zoo.specimen import Inputs

if TYPE_CHECKING:
    import paddle


def rotary(inputs: Inputs) -> tuple[paddle.Tensor, paddle.Tensor]:
    """The embedding that pipelines make, of all frames' tokens."""
    from ppdiffusers.models.embeddings import get_3d_rotary_pos_embed

    size = inputs.height // 2, inputs.width // 2
    return get_3d_rotary_pos_embed(
        embed_dim=16, crops_coords=((0, 0), size), grid_size=size, temporal_size=inputs.frames
    )


def _call(model: Any, inputs: Inputs) -> Any:
    return model(
        hidden_states=inputs.image(inputs.frames, 4), encoder_hidden_states=inputs.text(),
        timestep=inputs.timesteps, image_rotary_emb=rotary(inputs),
    )  # fmt: skip


SPECIMEN = replace(
    cogvideox.SPECIMEN, about="CogVideoX 5B", call=_call, pipelines=None,
    config={**cogvideox.CONFIG, "use_rotary_positional_embeddings": True},
)  # fmt: skip

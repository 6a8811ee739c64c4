"""VCtrlModel: what controls CogVideoX by another video (PP-VCtrl)."""

from zoo.cogvideox_rotary import rotary
from zoo.specimen import GPU_ATTENTION, Specimen, attention_anywhere

SPECIMEN = Specimen(
    "PP-VCtrl", "VCtrlModel",
    dict(
        num_attention_heads=2, attention_head_dim=16, time_embed_dim=8, patch_size=2, in_channels=4, num_layers=2,
    ),
    lambda model, inputs: model(
        inputs.image(inputs.frames, 4), inputs.timesteps, inputs.image(inputs.frames, 5, seed=4),
        image_rotary_emb=rotary(inputs), return_dict=False,
    ),
    mended=attention_anywhere, broken=GPU_ATTENTION, since="0.29.1",
)  # fmt: skip

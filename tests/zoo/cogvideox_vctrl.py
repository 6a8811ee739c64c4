"""CogVideoXTransformer3DVCtrlModel: CogVideoX that takes what a VCtrlModel adds."""

from dataclasses import replace

from zoo import cogvideox_rotary

SPECIMEN = replace(
    cogvideox_rotary.SPECIMEN, about="CogVideoX with PP-VCtrl", model_class="CogVideoXTransformer3DVCtrlModel",
    pipelines="",
)  # fmt: skip

"""FluxControlNetModel: a FLUX's first blocks, here for several modes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from zoo import flux
from zoo.specimen import Inputs


def _call(model: Any, inputs: Inputs) -> Any:
    import paddle

    given = flux.arguments(inputs)
    return model(
        **given, controlnet_cond=given["hidden_states"][:, ::-1], return_dict=False,
        controlnet_mode=paddle.ones([inputs.batch, 1], dtype="int64"),
    )  # fmt: skip


SPECIMEN = replace(
    flux.SPECIMEN, about="ControlNet of FLUX", model_class="FluxControlNetModel", since="0.30", call=_call,
    config={**flux.SPECIMEN.config, "num_mode": 3},
)  # fmt: skip

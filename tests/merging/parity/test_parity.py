"""The result equals tomesd 0.1.3's under PyTorch, with the same weights, input and destinations."""

from pathlib import Path

import numpy as np
import paddle
import pytest
from ppdiffusers import ControlNetModel, UNet2DConditionModel

from merging.parity import cases
from ppdiffusers_tome import apply_tome

REFERENCE = np.load(Path(__file__).with_name("reference.npz"))


def set_weights(model: paddle.nn.Layer) -> paddle.nn.Layer:
    linear = {f"{name}.weight" for name, layer in model.named_sublayers() if isinstance(layer, paddle.nn.Linear)}
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        value = cases.weight(name, shape[::-1]).T if name in linear else cases.weight(name, shape)
        parameter.set_value(paddle.to_tensor(value))
    model.eval()
    return model


@pytest.fixture(scope="module")
def models() -> tuple[paddle.nn.Layer, paddle.nn.Layer]:
    return set_weights(UNet2DConditionModel(**cases.UNET)), set_weights(ControlNetModel(**cases.CONTROLNET))


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_output_equals_tomesd(case: cases.Case, models: tuple[paddle.nn.Layer, paddle.nn.Layer]) -> None:
    unet, controlnet = models
    given = {name: paddle.to_tensor(value) for name, value in cases.inputs(case).items()}
    settings = {"max_downsample": 1, **case.settings}
    residuals = {}
    with paddle.no_grad():
        if case.control:
            apply_tome(controlnet, use_rand=False, **settings)
            down, mid = controlnet(
                given["sample"], given["timestep"], given["text"], given["control"], return_dict=False
            )
            residuals = dict(down_block_additional_residuals=down, mid_block_additional_residual=mid)
        apply_tome(unet, use_rand=False, **settings)
        output = unet(given["sample"], given["timestep"], given["text"], **residuals).sample.numpy()
    expected = REFERENCE[case.name]
    assert np.abs(output - expected).max() <= 1e-4 * np.abs(expected).max()

"""Write ``reference.npz``: what tomesd 0.1.3 under PyTorch answers to ``cases.py``.

Not run by the tests, which need no PyTorch. To make the file again:

    python -m venv reference && reference/bin/pip install torch==2.13.0 tomesd==0.1.3 diffusers==0.29.2 \
        "huggingface_hub<0.26" transformers==4.41.2
    reference/bin/python tests/merging/parity/make_reference.py
"""

from pathlib import Path

import cases
import numpy as np
import tomesd
import torch
from diffusers import ControlNetModel, UNet2DConditionModel


def set_weights(model: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(cases.weight(name, tuple(parameter.shape))))
    return model.eval()


@torch.no_grad()
def answer(case: cases.Case, unet: UNet2DConditionModel, controlnet: ControlNetModel) -> np.ndarray:
    given = {name: torch.from_numpy(value) for name, value in cases.inputs(case).items()}
    residuals = {}
    if case.control:
        tomesd.apply_patch(controlnet, use_rand=False, **case.settings)
        down, mid = controlnet(given["sample"], given["timestep"], given["text"], given["control"], return_dict=False)
        residuals = dict(down_block_additional_residuals=down, mid_block_additional_residual=mid)
        tomesd.remove_patch(controlnet)
    tomesd.apply_patch(unet, use_rand=False, **case.settings)
    output = unet(given["sample"], given["timestep"], given["text"], **residuals).sample
    tomesd.remove_patch(unet)
    return output.numpy()


def main() -> None:
    unet = set_weights(UNet2DConditionModel(**cases.UNET))
    controlnet = set_weights(ControlNetModel(**cases.CONTROLNET))
    answers = {case.name: answer(case, unet, controlnet) for case in cases.CASES}
    np.savez_compressed(Path(__file__).with_name("reference.npz"), **answers)
    print(len(answers), "cases")


if __name__ == "__main__":
    main()

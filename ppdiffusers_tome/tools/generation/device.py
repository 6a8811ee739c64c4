"""The device that Paddle runs on, and what it can compute."""

from __future__ import annotations

from ppdiffusers_tome.errors import UserError


def get_device_name() -> str:
    """What Paddle runs on: ``CPU`` or the GPU's name."""
    import paddle

    if paddle.get_device().startswith("gpu"):
        return paddle.device.cuda.get_device_name()
    return paddle.get_device().upper()


def check_device(dtype: str, *, xformers: bool) -> None:
    """This device can compute in that precision and way.

    Raises:
        UserError: it cannot.
    """
    import paddle

    if paddle.get_device() != "cpu":
        return
    if dtype != "float32":
        raise UserError(
            f"--dtype {dtype} needs a GPU: Paddle's CPU has no half-precision kernels for the operators of a "
            "UNet; use --dtype float32, or a GPU with paddlepaddle-gpu"
        )
    if xformers:
        raise UserError(
            "--xformers needs a GPU: Paddle's memory efficient attention has no CPU kernels; leave it out, or use a "
            "GPU with paddlepaddle-gpu"
        )

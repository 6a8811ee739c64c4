"""The device that Paddle runs on."""

from __future__ import annotations

from ppdiffusers_tome.errors import UserError


def get_device_name() -> str:
    """Return ``CPU`` or the GPU's name."""
    import paddle

    device = paddle.get_device()
    return paddle.device.cuda.get_device_name() if device.startswith("gpu") else device.upper()


def check_device(dtype: str, *, xformers: bool) -> None:
    """Check that this device can compute in a dtype, and with memory efficient attention."""
    import paddle

    option = "--xformers" if xformers else f"--dtype {dtype}"
    if paddle.get_device() == "cpu" and (xformers or dtype != "float32"):
        raise UserError(
            f"{option} needs a GPU: Paddle's CPU has no kernels for it; use --dtype float32 without --xformers, or "
            "a GPU with paddlepaddle-gpu"
        )

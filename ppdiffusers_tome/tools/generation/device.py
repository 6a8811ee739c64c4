"""The device that Paddle runs on."""

from __future__ import annotations

from ppdiffusers_tome.errors import UserError


def get_device_name() -> str:
    """Return ``CPU`` or the GPU's name."""
    import paddle

    if paddle.get_device().startswith("gpu"):
        return paddle.device.cuda.get_device_name()
    return paddle.get_device().upper()


def check_device(dtype: str, *, xformers: bool) -> None:
    """Check that this device can compute in a dtype, and with memory efficient attention.

    Raises:
        UserError: it cannot.
    """
    import paddle

    needs = {f"--dtype {dtype}": dtype != "float32", "--xformers": xformers}
    for option, needed in needs.items():
        if needed and paddle.get_device() == "cpu":
            raise UserError(
                f"{option} needs a GPU: Paddle's CPU has no kernels for it; use --dtype float32 without --xformers, or "
                "a GPU with paddlepaddle-gpu"
            )

"""The contract, kept by every family of models."""

from __future__ import annotations

import tiny
from core.contract import ToMeContract


class TestUNet(ToMeContract):
    build, run = staticmethod(tiny.unet), staticmethod(tiny.run_unet)


class TestSDXLUNet(ToMeContract):
    build, run = staticmethod(tiny.sdxl_unet), staticmethod(tiny.run_unet)


class TestControlNet(ToMeContract):
    build, run = staticmethod(tiny.controlnet), staticmethod(tiny.run_controlnet)


class TestDiT(ToMeContract):
    build, run = staticmethod(tiny.dit), staticmethod(tiny.run_dit)

"""The model that comes with the package, the scenes that it draws, and a checker of its pictures."""

from pathlib import Path

MODEL, CONTROLNET = (Path(__file__).parent / name for name in ("model", "controlnet"))

"""The models that come with the package, the photographs that they draw, and a judge of their pictures."""

from pathlib import Path

MODEL, CONTROLNET, DIT = (Path(__file__).parent / name for name in ("model", "controlnet", "dit"))
PROMPTS = ("a photo of an astronaut", "a photo of a cat", "a photo of a cup of coffee")  # where none is given

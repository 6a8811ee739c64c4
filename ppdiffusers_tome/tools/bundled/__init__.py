"""The models that come with the package, what they draw, and checkers of their pictures."""

from pathlib import Path

MODEL, CONTROLNET, DIT = (Path(__file__).parent / name for name in ("model", "controlnet", "dit"))
# What is drawn where nothing is asked for: three that the bundled model never saw in training.
PROMPTS = (
    "a yellow triangle on a blue background",
    "a purple triangle above a green circle on a white background",
    "an orange square right of a red circle on a white background",
)

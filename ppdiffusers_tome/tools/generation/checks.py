"""Checks of settings for a loaded pipeline, and oddities of its images."""

import inspect
import re

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.text import shorten_repr
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline


def check_settings(loaded: LoadedPipeline) -> None:
    """Refuse settings that this pipeline does not take."""
    if loaded.settings.negative_prompt is not None:
        if "negative_prompt" not in inspect.signature(loaded.pipe.__call__).parameters:
            raise UserError(f"--negative-prompt has no effect in a {type(loaded.pipe).__name__}; omit it")
        if loaded.guidance_scale <= 1:
            raise UserError(
                f"--negative-prompt has no effect at guidance scale {loaded.guidance_scale:g}; give a "
                "--guidance-scale above 1, or omit it"
            )
    if loaded.labels is not None:
        loaded.labels.check_arguments(loaded.settings.height, loaded.settings.width, loaded.guidance_scale)


def describe_oddities(loaded: LoadedPipeline, prompt: str) -> dict[str, str]:
    """Describe what is odd about an image of a prompt, by names."""
    from ppdiffusers_tome.tools.generation.sampling import get_native_size

    if loaded.labels is not None:
        return {}
    settings, found = loaded.settings, dict[str, str]()
    texts = {"too_long": (f"prompt {prompt[:40]!r}...", prompt),
             "negative_too_long": ("the negative prompt", settings.negative_prompt or "")}  # fmt: skip
    for name, (words, text) in texts.items():
        count, limit = len(loaded.pipe.tokenizer(text).input_ids), loaded.pipe.tokenizer.model_max_length
        if count > limit:
            found[name] = f"{words} has {count} tokens and the model reads {limit}; the rest is ignored"
    nouns = "|".join(re.escape(subject.split()[-1].lower()) for subject in settings.model.subjects)
    if nouns and not re.search(rf"\b({nouns})\b", prompt.lower()):
        found["unknown_subject"] = (
            f"prompt {shorten_repr(prompt)} names nothing that the model {settings.model.label} knows: "
            f"{', '.join(settings.model.subjects)}; write for example '{settings.model.prompts[0]}'"
        )
    (height, width), (native_height, native_width) = loaded.size, get_native_size(loaded.pipe)
    if not (0.5 < height / native_height <= 2 and 0.5 < width / native_width <= 2):
        found["unusual_size"] = (
            f"at {width}x{height} images may be smears or repeat what they show: the model was made for "
            f"{native_width}x{native_height} pixels"
        )
    return found

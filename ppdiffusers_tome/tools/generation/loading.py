"""Loading for prompts: whether the pipeline takes them, and what is odd about their images."""

import inspect
import re

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.text import shorten_repr
from ppdiffusers_tome.tools.console.output import choose_bar, warn
from ppdiffusers_tome.tools.generation.image_settings import ImageSettings
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline


def load_for_prompts(
    settings: ImageSettings, prompts: list[str], *, are_default_prompts: bool = False
) -> tuple[LoadedPipeline, list[str]]:
    """Load a pipeline; warn of prompts and sizes that do not suit.

    As many classes replace default prompts where the pipeline has classes.
    """
    loaded = load_from_settings(settings)
    oddities: list[str] = []
    if are_default_prompts and loaded.labels is not None:
        prompts = loaded.labels.list_names(len(prompts))
    for prompt in prompts:
        check_prompt(loaded, prompt)
        oddities += describe_oddities(loaded, prompt).values()
    for oddity in dict.fromkeys(oddities):
        warn(oddity)
    return loaded, prompts


def load_from_settings(settings: ImageSettings) -> LoadedPipeline:
    """Load a pipeline without any warnings about prompts and sizes."""
    from ppdiffusers_tome.tools.generation.model_loader import check_device, choose_kernels, load_pipeline
    from ppdiffusers_tome.tools.generation.sampling import get_class_labels
    from ppdiffusers_tome.tools.generation.schedulers import check_scheduler, make_scheduler

    check_device(settings.dtype, xformers=settings.xformers)
    pipe = load_pipeline(settings.model, settings.controlnet, dtype=settings.dtype)
    labels = get_class_labels(pipe)
    if settings.scheduler is not None:
        pipe.scheduler = make_scheduler(settings.scheduler, pipe.scheduler.config)
    check_scheduler(pipe.scheduler, settings.steps, may_scale=labels is None)
    choose_kernels(pipe, xformers=settings.xformers, cpu_kernels=settings.cpu_kernels, precision=settings.compile)
    pipe.set_progress_bar_config(desc="steps", **choose_bar(position=1))
    return LoadedPipeline(pipe, settings, labels)


def check_prompt(loaded: LoadedPipeline, prompt: str) -> None:
    """Raise a ``UserError`` for what this pipeline does not take."""
    if loaded.settings.negative_prompt is not None:
        if loaded.guidance_scale <= 1:
            raise UserError(
                f"--negative-prompt has no effect at guidance scale {loaded.guidance_scale:g}; give a "
                "--guidance-scale above 1, or omit it"
            )
        if "negative_prompt" not in inspect.signature(loaded.pipe.__call__).parameters:
            raise UserError(f"--negative-prompt has no effect in a {type(loaded.pipe).__name__}; omit it")
    if loaded.labels is not None:
        loaded.labels.check_arguments(loaded.settings.height, loaded.settings.width, loaded.guidance_scale)
        loaded.labels.find_class(prompt)


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

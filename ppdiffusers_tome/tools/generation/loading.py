"""Loading of a pipeline from the settings of images, for some prompts."""

from typing import Any

from ppdiffusers_tome.tools.console.output import choose_bar, warn
from ppdiffusers_tome.tools.generation.checks import check_settings, describe_oddities
from ppdiffusers_tome.tools.generation.image_settings import ImageSettings, check_device
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline


def load_for_prompts(
    settings: ImageSettings, prompts: list[str], *, are_default_prompts: bool = False
) -> tuple[LoadedPipeline, list[str]]:
    """Load a pipeline; warn of prompts and sizes that do not suit.

    As many classes replace default prompts where the pipeline has classes.
    """
    loaded = _load_pipeline(settings)
    oddities: list[str] = []
    if are_default_prompts and loaded.labels is not None:
        prompts = loaded.labels.list_names(len(prompts))
    check_settings(loaded)
    for prompt in prompts:
        if loaded.labels is not None:
            loaded.labels.find_class(prompt)
        oddities += describe_oddities(loaded, prompt).values()
    for oddity in dict.fromkeys(oddities):
        warn(oddity)
    return loaded, prompts


def _load_pipeline(settings: ImageSettings) -> LoadedPipeline:
    import paddle

    from ppdiffusers_tome.compilation.api import require_compiler
    from ppdiffusers_tome.tools.generation.pipeline_files import load_pipeline
    from ppdiffusers_tome.tools.generation.sampling import get_class_labels
    from ppdiffusers_tome.tools.generation.schedulers import check_scheduler, make_scheduler

    check_device(settings, paddle.get_device())
    if settings.compile is not None:
        require_compiler(settings.compile)
    pipe = load_pipeline(settings.model, settings.controlnet, dtype=settings.dtype)
    labels = get_class_labels(pipe)
    if settings.scheduler is not None:
        pipe.scheduler = make_scheduler(settings.scheduler, pipe.scheduler.config)
    check_scheduler(pipe.scheduler, settings.steps, may_scale=labels is None)
    _choose_kernels(pipe, settings)
    pipe.set_progress_bar_config(desc="steps", **choose_bar(position=1))
    return LoadedPipeline(pipe, settings, labels)


def _choose_kernels(pipe: Any, settings: ImageSettings) -> None:
    """Choose what computes attention, and on a CPU convolutions or whole models."""
    from ppdiffusers_tome.compilation.api import compile_cpu

    if settings.xformers:
        pipe.enable_xformers_memory_efficient_attention()
    if settings.compile is not None:
        compile_cpu(pipe, settings.compile)

"""Loading of a pipeline from the settings of images, for some prompts."""

from ppdiffusers_tome.tools.console.output import choose_bar, warn
from ppdiffusers_tome.tools.generation.image_settings import ImageSettings
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
from ppdiffusers_tome.tools.generation.prompt_checks import check_prompt, describe_oddities


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
    from ppdiffusers_tome.tools.generation.pipeline_files import check_device, choose_kernels, load_pipeline
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

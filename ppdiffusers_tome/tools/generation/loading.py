"""Loading of a pipeline from the files that ``models`` found."""

import inspect
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import paddle
import ppdiffusers

from ppdiffusers_tome.compilation.api import compile_cpu, require_compiler, require_programs
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.console.output import choose_bar, log, warn
from ppdiffusers_tome.tools.edges import load_edges
from ppdiffusers_tome.tools.generation.checks import check_device, check_loaded
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
from ppdiffusers_tome.tools.generation.model_files import find_code, is_torch, list_pickles
from ppdiffusers_tome.tools.generation.models import ModelSource, describe_small_models
from ppdiffusers_tome.tools.generation.prompts import DIT_PIPELINE
from ppdiffusers_tome.tools.generation.sampling import check_scheduler
from ppdiffusers_tome.tools.generation.settings import DTYPES, ImageSettings
from ppdiffusers_tome.tools.measure.memory import explain_shortage

_CONTROLNET_PIPELINES = {
    "StableDiffusionPipeline": "StableDiffusionControlNetPipeline",
    "StableDiffusionXLPipeline": "StableDiffusionXLControlNetPipeline",
}
# What a pipeline's call must take: also the noise of each image, and a function to call after every step.
_ARGUMENTS = {"prompt", "height", "width", "latents", "callback_on_step_end"}
_PICKLES = "weights are pickles, which can run any code, so load them only from whom you trust"


def load_for_prompts(settings: ImageSettings, prompts: Sequence[str]) -> LoadedPipeline:
    """Load a pipeline; refuse or warn of what does not suit it."""
    check_device(settings, paddle.get_device())
    if settings.compile is not None:
        require_compiler(settings.compile)
    pipe = load_pipeline(settings.model, settings.controlnet, dtype=settings.dtype)
    if settings.scheduler is not None:
        pipe.scheduler = make_scheduler(settings.scheduler, pipe.scheduler.config)
    loaded = LoadedPipeline(pipe, settings)
    check_scheduler(pipe.scheduler, settings.steps, may_scale=loaded.labels is None)
    check_loaded(loaded)
    if loaded.labels is not None:
        for prompt in prompts:
            loaded.labels.find_class(prompt)
    oddities = [words for prompt in prompts for words in loaded.describe_oddities(prompt).values()]
    for oddity in dict.fromkeys(oddities):  # each once
        warn(oddity)
    if settings.xformers:
        pipe.enable_xformers_memory_efficient_attention()
    if settings.compile is not None:
        require_programs(compile_cpu(pipe, settings.compile))
    pipe.set_progress_bar_config(desc="steps", **choose_bar(position=1))
    edges = None if settings.photo is None else load_edges(settings.photo, *loaded.size)
    return replace(loaded, edges=edges)


def make_scheduler(class_name: str, config: Any) -> Any:
    """Make a scheduler with the noise levels of another's config."""
    # Runge-Kutta steps, PNDM's own first ones, distort images of the small models. Stable Diffusion skips them, too.
    overrides = {"skip_prk_steps": True} if class_name == "PNDMScheduler" else {}
    return getattr(ppdiffusers, class_name).from_config(config, **overrides)


def load_pipeline(model: ModelSource, controlnet: ModelSource | None = None, *, dtype: str = DTYPES[0]) -> Any:
    """Load a pipeline in evaluation mode, in one of ``DTYPES``."""
    log(f"loading {' and '.join(source.label for source in (model, controlnet) if source)} ...")
    class_name = _read_class_name(model, guided=controlnet is not None)
    if controlnet is None:
        return _load(ppdiffusers.DiffusionPipeline, "--model", model, dtype)
    guide = _load(ppdiffusers.ControlNetModel, "--controlnet", controlnet, dtype)
    guided = getattr(ppdiffusers, _CONTROLNET_PIPELINES.get(class_name, class_name))
    pipe = _load(guided, "--model", model, dtype, controlnet=guide)
    for name in ("block_out_channels", "cross_attention_dim"):
        given, needed = guide.config[name], pipe.unet.config[name]
        if given != needed:
            raise UserError(
                f"--controlnet {controlnet.name} does not fit --model {model.name}: its {name} is {given}, and that of "
                f"the model {needed}; name one that was made for this model"
            )
    return pipe


def _read_class_name(model: ModelSource, *, guided: bool) -> str:
    """Read a pipeline's class; refuse code and other kinds of pipelines."""
    with _explain_faults("--model", model):
        # A folder's is read here, as ppdiffusers cannot read one that names a pipeline's own Python file.
        index = (
            ppdiffusers.DiffusionPipeline.load_config(model.name) if model.folder is None
            else json.loads((model.folder / "model_index.json").read_bytes())
        )  # fmt: skip
        if not isinstance(index, dict):
            raise ValueError("model_index.json holds no object")
    code = find_code(index, model.folder, ppdiffusers.pipelines)
    if code is not None:
        raise UserError(
            f"--model {model.name}: its model_index.json names Python code, {code}, which would run as you; if you "
            "trust it, load the model in Python and call apply_tome"
        )
    class_name = str(index.get("_class_name"))
    # A part is a pair, a library and a class of it; of a part that the pipeline lacks both are None.
    parts = {name for name, value in index.items() if isinstance(value, list | tuple) and any(value)}
    is_text_to_image = {"unet", "vae"} <= parts and _generates_from_prompt(class_name, guided=guided)
    if class_name != DIT_PIPELINE and not is_text_to_image:
        remedy = "give a text-to-image pipeline such as Stable Diffusion"
        if not guided and class_name in _CONTROLNET_PIPELINES.values():
            remedy = "name its ControlNet by --controlnet"
        raise UserError(f"--model {model.name} is a {class_name}, which this command cannot use; {remedy}")
    if guided and class_name not in (*_CONTROLNET_PIPELINES, *_CONTROLNET_PIPELINES.values()):
        known = " and ".join(_CONTROLNET_PIPELINES)
        raise UserError(f"--model {model.name} is a {class_name}; a ControlNet can be added to {known}")
    return class_name


def _generates_from_prompt(class_name: str, *, guided: bool) -> bool:
    """Return whether pipelines need a prompt, and maybe edges, alone."""
    cls = getattr(ppdiffusers, class_name, None)
    if cls is None:  # loading refuses an unknown class
        return True
    takes = inspect.signature(cls.__call__).parameters.keys()
    return takes >= _ARGUMENTS and (guided or "image" not in takes)


def _load(cls: Any, option: str, source: ModelSource, dtype: str, **keywords: Any) -> Any:
    if source.folder is None:
        warn(f"{option} {source.name}: {_PICKLES} where its files are no safetensors")
    else:  # for a hub's, ppdiffusers reads the variable FROM_DIFFUSERS
        keywords["from_diffusers"] = is_torch(source.folder)
        if pickles := list_pickles(source.folder):
            warn(f"{option} {source.name}: {_PICKLES}: {', '.join(pickles)}")
    with _explain_faults(option, source):
        return cls.from_pretrained(str(source.folder or source.name), **keywords, paddle_dtype=getattr(paddle, dtype))


@contextmanager
def _explain_faults(option: str, source: ModelSource) -> Iterator[None]:
    """Turn faults of loading into a ``UserError`` with the remedy."""
    try:
        yield
    except Exception as error:  # of ppdiffusers, paddlenlp, safetensors or the network
        if explain_shortage(error):  # of memory, which has a remedy of its own
            raise
        reason = " ".join(str(error).split())[:600] or type(error).__name__
        small = describe_small_models("model_index.json" if option == "--model" else "config.json")
        remedy = f"check the name and the network, or give {small}; for weights of PyTorch set FROM_DIFFUSERS=1"
        if source.folder is not None:
            remedy = "check that its files are complete; run 'git lfs pull' where they are git-lfs pointers"
        raise UserError(
            f"{option} {source.name} could not be loaded; {remedy} ({type(error).__name__}: {reason})"
        ) from error

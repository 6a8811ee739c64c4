"""``compile_cpu`` and ``uncompile_cpu``."""

from collections.abc import Iterator
from typing import Any, TypeVar

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.compilation.contents import COMPILED, find_fault
from ppdiffusers_tome.compilation.mapped_weights import map_weights
from ppdiffusers_tome.compilation.model import compile_model, is_replaceable, uncompile_model
from ppdiffusers_tome.cpu import prepare_cpu
from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.machine import AUTO, PRECISIONS, choose_float_precision, explain_missing_precision, has_precision
from ppdiffusers_tome.patching.layers import is_a
from ppdiffusers_tome.patching.models import is_denoiser_name, list_models
from ppdiffusers_tome.settings.text import did_you_mean, shorten_repr

T = TypeVar("T")


def compile_cpu(model_or_pipe: T, precision: str = AUTO) -> T:
    """Let OpenVINO compute a pipeline's models on a CPU, merged or not.

    The denoisers (UNets, ControlNets, transformers) and the VAE run as programs that OpenVINO compiles, one for each
    kind of call (size, batch, length of the text, settings of ToMe, kind of step), made in seconds when it is first
    met. The first result of each is compared with Paddle's own, once for each user; a program that differs too much is
    not used. A model that holds code of neither Paddle nor ppdiffusers (a processor or hook of one's own, another
    package's cache) is computed by Paddle, and so are gradients, training, FLUX with ToMe, and all else that cannot
    become a program; a warning tells why. The process is set up as ``prepare_cpu`` does. What this takes of time,
    memory and disk is in ``docs/en/guides/cpu.md``.

    Weights, layers, processors and settings may change afterwards: other programs are made. Not noticed are functions
    of Paddle's and ppdiffusers' modules that are replaced, and numbers in weights that change without Paddle counting
    it (``set_value``, an optimizer) between two steps of one image; outside of a pipeline they are, some calls later.

    Args:
        model_or_pipe: a ppdiffusers pipeline in float32, or one of its models.
        precision: ``"float32"``, the same image to rounding; ``"bfloat16"``, faster on processors that have it (AMX
            or AVX-512 BF16), with small changes; ``"auto"``, bfloat16 where the processor has it and float32 elsewhere;
            or ``"int8"``, convolutions and linear layers in 8 bits, which needs AMX, AVX-512 VNNI or AVX-VNNI, with
            larger changes. The other layers, and all at timesteps of 100 or less of 1000, are then as with ``"auto"``.

    Returns:
        ``model_or_pipe``, so that calls chain.

    Raises:
        ToMeTypeError: ``model_or_pipe`` is neither a pipeline nor a model.
        ToMeValueError: the precision is unknown or the processor lacks it; openvino or Paddle 3 is missing; or a model
            cannot be compiled (its type, device or settings, or a function in place of its ``forward``). Nothing has
            changed then.

    Example:
        >>> pipe.apply_tome("balanced")  # doctest: +SKIP
        >>> compile_cpu(pipe)  # doctest: +SKIP
    """
    models = list(_list_models_to_compile(model_or_pipe))
    precision = choose_float_precision() if precision == AUTO else precision
    require_compiler(precision)
    for name, model in models:
        if fault := find_fault(model, [*model.parameters(), *model.buffers()]):
            raise ToMeValueError(f"{name} cannot be compiled: {fault}")
        if not is_replaceable(model):
            raise ToMeValueError(
                f"{name} cannot be compiled: other code put a function in place of its forward (a cache, offloading); "
                "take that off first"
            )
    threads = prepare_cpu(keep_memory=False)  # Paddle has few layers left for which it would pay to keep memory.
    for name, model in models:
        uncompile_model(model)  # Programs of an earlier ``compile_cpu`` may read weights at their present addresses.
        map_weights(model, name)
        compile_model(model, precision, threads)
    return model_or_pipe


def uncompile_cpu(model_or_pipe: T) -> T:
    """Let Paddle compute a pipeline or model again, exactly as before ``compile_cpu``."""
    for _, model in list_models(model_or_pipe, denoisers_only=False):
        for layer in model.sublayers(include_self=True):
            uncompile_model(layer)
    return model_or_pipe


def require_programs(pipe: Any) -> None:
    """Let a compiled pipeline raise an ``UncompilableError`` where Paddle would compute."""
    for _, model in _list_models_to_compile(pipe):
        vars(model)[COMPILED].requires_programs = True


def require_compiler(precision: str) -> None:
    """Refuse an environment without OpenVINO, Paddle 3 or the precision."""
    if precision not in tuple(PRECISIONS):
        known = (AUTO, *PRECISIONS)
        suggestion = did_you_mean(str(precision), known)
        raise ToMeValueError(f"precision={shorten_repr(precision)} must be {' or '.join(map(repr, known))}{suggestion}")
    if paddle.__version__.startswith("2."):
        raise ToMeValueError(
            f"compile_cpu needs Paddle 3; this is {paddle.__version__}: pip install paddlepaddle==3.3.1"
        )
    try:
        import openvino.opset15  # noqa: F401
    except Exception as error:  # A broken installation may raise anything.
        raise ToMeValueError(
            f"compile_cpu needs openvino ({type(error).__name__}: {error}); pip install 'openvino>=2026.4,<2027'"
        ) from error
    if not has_precision(precision):
        raise ToMeValueError(explain_missing_precision(precision))


def _list_models_to_compile(model_or_pipe: Any) -> Iterator[tuple[str, Layer]]:
    """Yield the models to compile with names: denoisers, encoders and decoders of VAEs."""
    for name, model in list_models(model_or_pipe, denoisers_only=False):
        if hasattr(model, "decode") and isinstance(getattr(model, "decoder", None), Layer):
            parts = [part for part in ("encoder", "decoder") if isinstance(getattr(model, part, None), Layer)]
            yield from ((f"{name}.{part}".lstrip("."), getattr(model, part)) for part in parts)
        elif is_a(model, "MultiControlNetModel"):
            yield from ((f"{name}.nets.{number}".lstrip("."), net) for number, net in enumerate(model.nets))
        elif is_denoiser_name(name):
            yield name or type(model).__name__, model

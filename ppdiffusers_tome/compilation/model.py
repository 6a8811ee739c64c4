"""A compiled model: the function in place of its ``forward``, and its programs.

Each kind of call has a program, made when it is first met: the model as it is then, the shapes of the call's inputs,
the constants among them, and the kind of step. What cannot become a program is computed by Paddle, which a warning
tells once.
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import numpy as np
import paddle
from paddle.jit.sot import psdb
from paddle.nn import Layer

from ppdiffusers_tome.compilation.contents import Contents, put_scales
from ppdiffusers_tome.compilation.slices import compute_in_slices
from ppdiffusers_tome.compilation.structure import Structure, put_tensors, take_tensors
from ppdiffusers_tome.compilation.twin import COMPILED, StepCall, make_twin, run_twin
from ppdiffusers_tome.cpu import has_precision
from ppdiffusers_tome.errors import ToMeTypeError, UncompilableError
from ppdiffusers_tome.merging.arrays import share_memory
from ppdiffusers_tome.messages import show_progress, warn_user
from ppdiffusers_tome.patching.arguments import list_parameters
from ppdiffusers_tome.patching.call_stack import CALL_STACK, CHANGE_LOCK
from ppdiffusers_tome.patching.overrides.denoiser import TIMESTEPS, find_timestep
from ppdiffusers_tome.patching.paddle_compat import FALLBACK, convert_while_tracing
from ppdiffusers_tome.patching.slots import find_inner_forward, replace_inner_forward
from ppdiffusers_tome.patching.state.block_call import WATCHERS
from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall
from ppdiffusers_tome.patching.step_cache.cached_call import CachedCall, open_cached_call
from ppdiffusers_tome.version import __version__

if TYPE_CHECKING:
    from ppdiffusers_tome.compilation.program import Program

# The largest difference of a program's result from Paddle's with which it is used, by precision: the root of the mean
# square of the difference over that of the result.
BOUNDS = {"float32": 0.001, "bfloat16": 0.1, "int8": 0.25}
# What is kept for later steps differs more where tokens are as near to one destination as to another.
_KEPT_BOUND = 0.1
# Up to this timestep (of 1000) no layer is in 8 bits, as no step comes after that would remove the noise of rounding.
_LAST_TIMESTEP = 100
_MOST_BYTES = 12 * 2**30  # that programs of a model hold; two are kept at least
_processes: list[int] = []  # the one in which OpenVINO has threads
_INPUT_TYPES = {"float32", "int64", "int32", "bool"}  # of tensors among a call's arguments


class _Step(NamedTuple):
    """The relation of a call to other steps; none without ToMe."""

    call: DenoiserCall | None = None
    cached: CachedCall | None = None
    predicted: Mapping[str, Any] = {}  # values of the layers that are skipped
    reductions: Mapping[Any, Any] = {}  # that are used again

    @property
    def stores_values(self) -> bool:
        """True in every step that a cache computes.

        Also where no later step needs the values, so that all have one program.
        """
        return self.call is not None and bool(self.call.state.config.cache) and not self.predicted


class _ModelCall(NamedTuple):
    """A call of a model, with what its program is made of."""

    layer: Layer
    contents: Contents
    arguments: Structure
    tensors: Sequence[paddle.Tensor]
    step: _Step
    precision: str


class CompiledModel:
    """The programs of a model, in a precision and on some threads."""

    def __init__(self, precision: str, threads: int) -> None:
        self.precision, self.threads = precision, threads
        # Of the last calls of an image in 8 bits; found once, as it reads a file.
        self._last_precision = "bfloat16" if has_precision("bfloat16") else "float32"
        self._process, self._lock = os.getpid(), threading.RLock()  # a program computes one call at a time
        self._contents: Contents | None = None
        self._read_in: WeakSet[Any] = WeakSet()  # the pipelines' calls in which the weights were read
        self._weights = ("", "")  # the present ones and those before
        self._keeps_timestep: dict[Any, bool] = {}  # whether it embeds the timestep that it gets
        self._programs: OrderedDict[Any, Any] = OrderedDict()  # the last used last; None: by Paddle
        self._layouts: dict[Any, Any] = {}  # of the tokens in a kind of call
        self._warned: set[str] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> "CompiledModel":
        return CompiledModel(self.precision, self.threads)

    def __reduce__(self) -> Any:
        raise ToMeTypeError("a compiled model cannot be pickled; call uncompile_cpu first, and compile_cpu on the copy")

    def run(self, layer: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Compute a call of the model by a program, or by Paddle."""
        run_paddle = MethodType(type(layer).forward, layer)
        if not paddle.in_dynamic_mode():
            return convert_while_tracing(run_paddle)(*args, **kwargs)
        if os.getpid() != self._process:  # a fork, in which the thread that holds the lock may be gone
            self._process, self._lock = os.getpid(), threading.RLock()
        reason = ""
        with self._lock:
            try:
                found = self._compute(layer, args, kwargs)
            except UncompilableError as error:
                found, reason = None, str(error)
        if found is not None:
            return found[0]
        output = run_paddle(*args, **kwargs)  # which raises an error of the user's own
        if reason and reason not in self._warned:
            self._warned.add(reason)
            warn_user(f"{type(layer).__name__} is computed by Paddle, not by a compiled program: {reason}")
        return output

    def clear(self) -> None:
        """Free the programs."""
        with self._lock:
            self._contents = None
            self._programs.clear()
            self._layouts.clear()
            self._keeps_timestep.clear()

    def _compute(self, layer: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any] | None:
        """Compute a call by a program; its output is in a tuple.

        None where Paddle computes it, as was said before.

        Raises:
            UncompilableError: why Paddle computes it.
        """
        contents, tensors = self._update_contents(layer), list[paddle.Tensor]()
        args, kwargs = _replace_numbers(layer, args, kwargs)
        take_tensors((args, kwargs), tensors)
        _require_compilable(contents, tensors)
        precision = self._choose_precision(layer, args, kwargs)
        # Masks have -inf.
        if precision == "int8" and not all(x.max(initial=0) < np.inf for x in share_memory(*tensors)):
            raise UncompilableError("it gets NaN or infinity, which 8 bits would hide")
        call = next((frame.call for frame in reversed(CALL_STACK.frames) if frame.call.denoiser is layer), None)
        if call is not None and call.state.config.differs_by_step:
            self._require_timestep(layer, contents, args, kwargs, tensors, call)
        step = _begin_step(call)
        tensors.clear()
        scales = [paddle.to_tensor(each["scale"], "float32", paddle.CPUPlace()) for each in contents.scales]
        arguments = take_tensors((args, kwargs, step.predicted, step.reductions, scales), tensors)
        shapes = ((tuple(x.shape), str(x.dtype)) for x in tensors)
        kind = (precision, contents.digest, arguments, step.stores_values, *shapes)
        key, result = self._find_key(kind, step), None
        if key not in self._programs:
            try:
                model_call = _ModelCall(layer, contents, arguments, tensors, step, precision)
                program, result = self._make_program(model_call)
            except UncompilableError:
                self._programs[key] = None
                raise
            self._layouts[kind] = program.layouts
            key = self._find_key(kind, step)
            self._programs[key] = program
        self._programs.move_to_end(key)
        found = self._programs[key]
        if found is None:
            return None
        output, values, made = found.run(tensors) if result is None else result
        self._drop_oldest()
        _end_step(step, found, values, made)
        return (output,)

    def _require_timestep(
        self, layer: Layer, contents: Contents, args: Any, kwargs: Any, tensors: Sequence[paddle.Tensor],
        call: DenoiserCall,
    ) -> None:  # fmt: skip
        """Refuse a model that embeds another timestep than it gets."""
        from ppdiffusers_tome.compilation.trace import embeds_input

        arguments = take_tensors((args, kwargs), [])  # a number with a fraction is cut off, and a tensor is not
        if (key := (contents.digest, arguments)) not in self._keeps_timestep:
            self._keeps_timestep[key] = embeds_input(layer, contents, arguments, tensors, call)
        if not self._keeps_timestep[key]:
            raise UncompilableError("it embeds another timestep than it gets, and its settings depend on the step")

    def _update_contents(self, layer: Layer) -> Contents:
        """Return the model's contents; read again what changed, and once an image all weights."""
        pipeline_call, contents = CALL_STACK.pipeline_call, self._contents
        if pipeline_call is not None:
            is_due = pipeline_call not in self._read_in
        else:
            is_due = contents is not None and contents.is_reading_due
        if contents is None or not contents.is_current():
            with CHANGE_LOCK:
                found = Contents(layer)
            # A program may read weights where they were when it was made.
            if contents is not None and contents.addresses != found.addresses:
                self._programs.clear()
            self._contents, contents, is_due = found, found, True
        if is_due:
            contents.read_weights()
            if pipeline_call is not None:
                self._read_in.add(pipeline_call)
        if contents.weights not in self._weights:
            self._weights = contents.weights, self._weights[0]  # those of a LoRA in turns with those without it
            outdated = [key for key, each in self._programs.items() if each and each.weights not in self._weights]
            for key in outdated:
                del self._programs[key]
        return contents

    def _find_key(self, kind: Any, step: _Step) -> Any:
        """Return the key of a call's program, which counts the tokens that merge."""
        layouts = self._layouts.get(kind)
        if step.call is None or layouts is None:
            return kind, layouts
        return kind, tuple(step.call.find_plan(layout).num_merged for layout in layouts)

    def _choose_precision(self, layer: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the precision of a call; the last steps are not in 8 bits."""
        timestep = None if self.precision != "int8" else find_timestep(list_parameters(layer), args, kwargs)
        if timestep is None or np.max(np.asarray(timestep)) > _LAST_TIMESTEP:
            return self.precision
        return self._last_precision

    def _make_program(self, model_call: _ModelCall) -> tuple["Program", Any]:
        """Make a call's program.

        Returns:
            It, and its first result, which was compared with Paddle's; None where a note says that one was.
        """
        # Which need OpenVINO.
        from ppdiffusers_tome.compilation.program import Program
        from ppdiffusers_tome.compilation.trace import trace_call

        layer, contents, arguments, tensors, step, precision = model_call
        begin, name = time.perf_counter(), type(layer).__name__
        try:
            trace = trace_call(layer, contents, arguments, tensors, step.call, stores_values=step.stores_values)
            show_progress(f"{name} for {' '.join(str(list(x.shape)) for x in tensors[:1])} is being compiled ...")
            _processes[:] = [os.getpid()]
            program = Program(trace, contents.weights, precision, self.threads)
            result = self._compare(program, model_call)
        except Exception as error:  # of code of the model, of Paddle or OpenVINO
            kind = "" if isinstance(error, UncompilableError) else f"{type(error).__name__}: "
            raise UncompilableError(f"{kind}{' '.join(str(error).split())[-300:]}") from None
        show_progress(f"{name} was compiled in {time.perf_counter() - begin:.1f} s")
        return program, result

    def _compare(self, program: "Program", model_call: _ModelCall) -> Any:
        """Refuse a program whose result differs from Paddle's.

        Returns:
            The result; None where an earlier comparison is noted.
        """
        from ppdiffusers_tome.compilation.comparison import measure_difference, name_note_file

        layer, contents, arguments, tensors, step, precision = model_call
        merged = [] if step.call is None else [step.call.find_plan(layout).num_merged for layout in program.layouts]
        kind = contents.digest, arguments, [(x.shape, x.dtype) for x in tensors], step.stores_values, merged
        note = None
        with suppress(RuntimeError):  # without a home each process compares
            note = name_note_file(__version__, precision, kind)
        if note is not None and os.path.isfile(note):  # False too where Path raises, as in a folder without permission
            return None
        twin = make_twin(layer, {id(x): x for x in contents.tensors})
        args, kwargs, predicted, reductions, scales = put_tensors(arguments, tensors)
        put_scales(twin, scales)
        compute_in_slices(twin)
        computed = StepCall(predicted, reductions, step.stores_values)
        expected = run_twin(twin, args, kwargs, step.call, computed)
        result, bound = program.run(tensors), BOUNDS[precision]
        for found, wanted, most in (
            (result[0], expected, bound), (result[1], computed.values, max(bound, _KEPT_BOUND)),
        ):  # fmt: skip
            if not (difference := measure_difference(found, wanted, pooled=wanted is computed.values)) <= most:
                raise UncompilableError(
                    f"its result in {precision} differs from Paddle's by {difference:.2g}, more than {most:g}"
                )
        with suppress(OSError):  # else the next process compares again
            if note is not None:
                note.parent.mkdir(parents=True, exist_ok=True)
                note.touch()
        return result

    def _drop_oldest(self) -> None:
        """Drop the programs used longest ago while all hold more than the bound."""
        made = [(key, program.num_bytes) for key, program in self._programs.items() if program is not None]
        held = sum(num_bytes for _, num_bytes in made)
        for key, num_bytes in made[:-2]:
            if held > _MOST_BYTES:
                del self._programs[key]
                held -= num_bytes


def _begin_step(call: DenoiserCall | None) -> _Step:
    """Find what a call has to do with other steps."""
    if call is None or not call.state.config.differs_by_step:
        return _Step(call)
    call.read_timestep()
    cached = open_cached_call(call) if call.state.config.cache else None
    predicted = {} if cached is None else {path: cached.predict(path) for path in cached.list_skipped()}
    shared = call.shared if call.state.config.reuse_steps > 1 else None
    return _Step(call, cached, predicted, {} if shared is None else dict(shared.reductions))


def _end_step(step: _Step, program: "Program", values: Sequence[Any], made: Mapping[Any, Any]) -> None:
    """Leave what later steps need."""
    call, cached = step.call, step.cached
    if call is None:
        return
    call.state.awaits_blocks = False
    if cached is not None:
        cached.has_skipped = program.has_skipped
    if cached is not None and cached.stores_values:
        for (path, has_slope), value in zip(program.stored, values, strict=True):
            cached.store(path, value, has_slope=has_slope)
    if call.shared is not None:
        call.shared.reductions.update(made)


def _require_compilable(contents: Contents, tensors: Sequence[paddle.Tensor]) -> None:
    """Refuse a call that no program computes."""
    if contents.obstacle is not None:
        raise UncompilableError(contents.obstacle)
    if _processes and os.getpid() not in _processes:
        raise UncompilableError("this process was forked, and OpenVINO's threads are in the first one")
    types = {str(x.dtype).removeprefix("paddle.") for x in tensors}
    if WATCHERS:
        raise UncompilableError("merging is being recorded")
    if paddle.is_grad_enabled() and any(not x.stop_gradient for x in (*tensors, *contents.tensors)):
        contents.request_reading()  # as whoever trains changes weights
        raise UncompilableError("gradients are recorded; call it under paddle.no_grad()")
    if paddle.is_autocast_enabled():
        raise UncompilableError("paddle.amp.auto_cast is on")
    if not all(x.place.is_cpu_place() for x in tensors):
        raise UncompilableError("it gets tensors on a GPU; give them on the CPU")
    if others := types - _INPUT_TYPES:
        raise UncompilableError(f"it gets tensors in {', '.join(sorted(others))}; give float32")


@paddle.jit.not_to_static
def _run_compiled(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in place of a model's ``forward``."""
    psdb.fallback(**FALLBACK)
    compiled = vars(layer).get(COMPILED)
    if compiled is None:  # a function that other code put around this one still calls it
        return type(layer).forward(layer, *args, **kwargs)
    return compiled.run(layer, args, kwargs)


def compile_model(layer: Layer, precision: str, threads: int) -> None:
    """Put programs in place of a model's ``forward``, inside of ToMe's overrides."""
    uncompile_model(layer)
    vars(layer)[COMPILED] = CompiledModel(precision, threads)
    replace_inner_forward(layer, None, MethodType(_run_compiled, layer))


def uncompile_model(layer: Layer) -> None:
    """Put back what stood in a model before ``compile_model``; free its programs."""
    compiled = vars(layer).pop(COMPILED, None)
    replace_inner_forward(layer, MethodType(_run_compiled, layer), None)
    if compiled is not None:
        compiled.clear()


def is_replaceable(layer: Layer) -> bool:
    """Return whether nothing but ToMe and programs stands in place of a model's ``forward``."""
    return find_inner_forward(layer) in (None, MethodType(_run_compiled, layer))


def _replace_numbers(layer: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Replace numbers that change from call to call by tensors.

    Numbers are constants of a program. Most models cut off the fraction of a timestep that is a number, and not that of
    a tensor, so a fraction stays.
    """

    def convert(name: str, value: Any) -> Any:
        if name == "cross_attention_kwargs" and isinstance(value, dict) and isinstance(value.get("scale"), float):
            return {**value, "scale": paddle.to_tensor(value["scale"], "float32", paddle.CPUPlace())}  # of a LoRA
        if name == "conditioning_scale" and isinstance(value, float) and hasattr(layer, "controlnet_down_blocks"):
            return paddle.to_tensor([value] * (len(layer.controlnet_down_blocks) + 1), "float32", paddle.CPUPlace())
        is_whole = name in TIMESTEPS and isinstance(value, (int, float)) and value == value // 1
        return paddle.to_tensor([int(value)], "int64", paddle.CPUPlace()) if is_whole else value

    names = [*list_parameters(layer), *[""] * len(args)]
    return tuple(map(convert, names, args)), {name: convert(name, value) for name, value in kwargs.items()}

"""A compiled model: the function in place of its ``forward``, and its programs.

Each kind of call has a program, made when it is first met: the model as it is then, the shapes of the call's inputs,
the constants among them, and the kind of step. What cannot become a program is computed by Paddle, which a warning
tells once.
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle
from paddle.jit.sot import psdb
from paddle.nn import Layer

from ppdiffusers_tome.compilation.contents import COMPILED, Contents
from ppdiffusers_tome.compilation.model_call import CallOutputs, ModelCall, StepValues, make_call, replace_numbers
from ppdiffusers_tome.errors import ToMeTypeError, UncompilableError, UserError
from ppdiffusers_tome.machine import choose_float_precision
from ppdiffusers_tome.messages import show_progress, warn_user
from ppdiffusers_tome.patching.arguments import list_parameters, name_arguments
from ppdiffusers_tome.patching.call_stack import CALL_STACK, CHANGE_LOCK
from ppdiffusers_tome.patching.overrides.denoiser import find_timestep
from ppdiffusers_tome.patching.paddle_compat import FALLBACK, convert_while_tracing
from ppdiffusers_tome.patching.slots import find_inner_forward, replace_inner_forward

if TYPE_CHECKING:
    from ppdiffusers_tome.compilation.program import Program

# Up to this timestep (of 1000) no layer is in 8 bits, as no step comes after that would remove the noise of rounding.
_LAST_TIMESTEP = 100
_MOST_BYTES = 12 * 2**30  # that programs of a model hold; two are kept at least
_openvino_process: int | None = None  # in which OpenVINO has threads


class CompiledModel:
    """The programs of a model, in a precision and on some threads."""

    def __init__(self, precision: str, threads: int) -> None:
        self.precision, self.threads = precision, threads
        self.is_required = False  # True where a command was asked to compile
        # Of the last calls of an image in 8 bits; found once, as it reads a file.
        self._last_precision = choose_float_precision()
        self._process, self._lock = os.getpid(), threading.RLock()  # a program computes one call at a time
        self._contents: Contents | None = None
        self._recent_hashes = ("", "")  # of the present weights and those before
        self._keeps_timestep: dict[Any, bool] = {}  # True where the model embeds the timestep that it gets
        # The last used last; a text tells why there is none.
        self._programs: OrderedDict[Any, Program | str] = OrderedDict()
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
        try:
            with self._lock:
                return self._compute(layer, args, kwargs)
        except UncompilableError as error:
            reason = str(error)
        if self.is_required:
            remedy = "" if reason.endswith("give float32") else "; omit --compile"
            raise UserError(f"--compile: {type(layer).__name__} cannot be compiled: {reason}{remedy}")
        output = run_paddle(*args, **kwargs)  # which raises an error of the user's own
        if reason not in self._warned:
            self._warned.add(reason)
            warn_user(f"{type(layer).__name__} is computed by Paddle, not by a compiled program: {reason}")
        return output

    def clear(self) -> None:
        """Free the programs."""
        with self._lock:
            self._contents = None  # which refers to this, in a circle
            self._programs.clear()

    def _compute(self, layer: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Compute a call by a program.

        Raises:
            UncompilableError: why Paddle computes it.
        """
        contents, precision = self._update_contents(layer), self._choose_precision(layer, args, kwargs)
        call = next((entry.call for entry in reversed(CALL_STACK.entries) if entry.call.denoiser is layer), None)
        parts = layer, contents, precision, *replace_numbers(layer, args, kwargs)
        model_call = make_call(*parts, StepValues(call))
        model_call.require_compilable()
        if _openvino_process not in (None, os.getpid()):
            raise UncompilableError("this process was forked, and OpenVINO's threads are in the first one")
        if call is not None and call.state.config.differs_by_step:
            self._require_timestep(model_call)
            # Known only now: reading what earlier steps left begins a step of the cache.
            model_call = make_call(*parts, StepValues.read(call))
        key = self._find_key(model_call)
        program = self._programs.get(key)
        if isinstance(program, str):
            raise UncompilableError(program)
        if program is None:
            outputs = self._make_program(model_call)
        else:
            outputs = program.run(model_call.tensors)
            self._programs.move_to_end(key)
        model_call.step_values.keep(outputs)
        return outputs.returned

    def _require_timestep(self, model_call: ModelCall) -> None:
        """Refuse a model that embeds another timestep than it gets."""
        from ppdiffusers_tome.compilation.trace import embeds_input

        # As FLUX, which multiplies it by 1000. Of a number models cut off a fraction, and not that of a tensor.
        key = model_call.contents.digest, model_call.arguments
        if key not in self._keeps_timestep:
            self._keeps_timestep[key] = embeds_input(model_call)
        if not self._keeps_timestep[key]:
            raise UncompilableError("it embeds another timestep than it gets, and its settings depend on the step")

    def _update_contents(self, layer: Layer) -> Contents:
        """Return the model's contents as they are now; drop programs of others."""
        contents = self._contents
        if contents is None or not contents.is_current():
            with CHANGE_LOCK:
                contents = Contents(layer)
            # A program may read weights where they were when it was made.
            if self._contents is not None and self._contents.addresses != contents.addresses:
                self._programs.clear()
            self._contents = contents
        contents.reader.read(CALL_STACK.pipeline_call)
        if contents.reader.hash != self._recent_hashes[0]:
            # Those of a LoRA in turns with those without it.
            self._recent_hashes = contents.reader.hash, self._recent_hashes[0]
            for key, program in list(self._programs.items()):
                if not isinstance(program, str) and program.weights_hash not in self._recent_hashes:
                    del self._programs[key]
        return contents

    def _find_key(self, model_call: ModelCall) -> Any:
        """Return the key of a call's program: its kind and merged tokens."""
        layouts = self._layouts.get(model_call.kind)  # None before the first program of the kind
        return model_call.kind, None if layouts is None else model_call.count_merged(layouts)

    def _choose_precision(self, layer: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the precision of a call, which is not 8 bits at the end."""
        if self.precision != "int8":
            return self.precision
        timestep = find_timestep(name_arguments(list_parameters(layer), args, kwargs))
        is_last = timestep is not None and np.max(np.asarray(timestep)) <= _LAST_TIMESTEP
        return self._last_precision if is_last else self.precision

    def _make_program(self, model_call: ModelCall) -> CallOutputs:
        """Make a call's program; return its first outputs, compared with Paddle's."""
        global _openvino_process
        # Which need OpenVINO.
        from ppdiffusers_tome.compilation.comparison import compare_outputs, compute_unless_noted, find_note
        from ppdiffusers_tome.compilation.program import Program
        from ppdiffusers_tome.compilation.trace import trace_call

        begin, name = time.perf_counter(), type(model_call.layer).__name__
        try:
            trace = trace_call(model_call)
            shape = " ".join(str(list(x.shape)) for x in model_call.tensors[:1])
            show_progress(f"{name} for {shape} is being compiled in {model_call.precision} ...")
            note = find_note(model_call, trace.layouts)
            # Before there is a program, which holds memory, too.
            expected = compute_unless_noted(model_call, note)
            _openvino_process = os.getpid()
            program = Program(trace, model_call.contents.reader.hash, model_call.precision, self.threads)
            outputs = program.run(model_call.tensors)
            if expected is not None:
                compare_outputs(outputs, expected, model_call.precision, note)
        except Exception as error:  # of code of the model, of Paddle or OpenVINO
            kind = "" if isinstance(error, UncompilableError) else f"{type(error).__name__}: "
            reason = f"{kind}{' '.join(str(error).split())[-300:]}"
            self._programs[self._find_key(model_call)] = reason
            raise UncompilableError(reason) from None
        show_progress(f"{name} was compiled in {time.perf_counter() - begin:.1f} s")
        self._layouts[model_call.kind] = trace.layouts
        self._programs[self._find_key(model_call)] = program
        self._drop_oldest()
        return outputs

    def _drop_oldest(self) -> None:
        """Drop the programs used longest ago, beyond the bound of memory."""
        made = [(key, each.num_bytes) for key, each in self._programs.items() if not isinstance(each, str)]
        held = sum(num_bytes for _, num_bytes in made)
        for key, num_bytes in made[:-2]:
            if held > _MOST_BYTES:
                del self._programs[key]
                held -= num_bytes


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
    vars(layer)[COMPILED] = CompiledModel(precision, threads)
    replace_inner_forward(layer, None, MethodType(_run_compiled, layer))


def uncompile_model(layer: Layer) -> None:
    """Put back what stood in a model before ``compile_model``; free its programs."""
    compiled = vars(layer).pop(COMPILED, None)
    replace_inner_forward(layer, MethodType(_run_compiled, layer), None)
    if compiled is not None:
        compiled.clear()


def is_replaceable(layer: Layer) -> bool:
    """Return whether only ToMe and programs stand in place of ``forward``."""
    return find_inner_forward(layer) in (None, MethodType(_run_compiled, layer))

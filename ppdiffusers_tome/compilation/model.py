"""A compiled model: the function in place of its ``forward``, and its programs.

Each kind of call has a program, made when it is first met. A kind is the model as it is then, the shapes of the call's
inputs, the constants among them, and the kind of step. What cannot become a program is computed by Paddle, which a
warning tells once.
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
from ppdiffusers_tome.errors import ToMeTypeError, UncompilableError
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
_MOST_BYTES = 12 * 2**30  # The programs of a model hold no more, but two are kept at least.
_openvino_process: int | None = None  # The process in which OpenVINO has threads.


class CompiledModel:
    """The programs of a model, in a precision and on some threads."""

    def __init__(self, precision: str, threads: int) -> None:
        self.precision, self.threads = precision, threads
        self.requires_programs = False  # True: a call that cannot become a program is an error, not Paddle's.
        # The last calls of an image are in this one instead of 8 bits. It is found once, as that reads a file.
        self._last_precision = choose_float_precision()
        self._process, self._lock = os.getpid(), threading.RLock()  # A program computes one call at a time.
        self._contents: Contents | None = None
        # The hashes of the present weights and of those before: two, as a LoRA may be loaded and unloaded in turns.
        self._recent_hashes = ("", "")
        self._keeps_timestep: dict[Any, bool] = {}  # Whether a call of the model embeds the timestep that it gets.
        self._programs: OrderedDict[Any, Program] = OrderedDict()  # The last used comes last.
        self._reasons: dict[Any, str] = {}  # Why there is no program.
        self._layouts: dict[Any, Any] = {}  # The layouts of the tokens in each kind of call.
        self._warned: set[str] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> "CompiledModel":
        return CompiledModel(self.precision, self.threads)

    def __reduce__(self) -> Any:
        raise ToMeTypeError("a compiled model cannot be pickled; call uncompile_cpu first, and compile_cpu on the copy")

    def run(self, model: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Compute a call of the model by a program, or by Paddle."""
        run_paddle, name = MethodType(type(model).forward, model), type(model).__name__
        if not paddle.in_dynamic_mode():
            return convert_while_tracing(run_paddle)(*args, **kwargs)
        if os.getpid() != self._process:  # After a fork, the thread that holds the lock may be gone.
            self._process, self._lock = os.getpid(), threading.RLock()
        try:
            with self._lock:
                return self._compute(model, args, kwargs)
        except UncompilableError as error:
            reason = str(error)
        if self.requires_programs:
            raise UncompilableError(f"{name} cannot be compiled: {reason}")
        output = run_paddle(*args, **kwargs)  # If the user's call is wrong, this raises Paddle's error.
        if reason not in self._warned:
            self._warned.add(reason)
            warn_user(f"{name} is computed by Paddle, not by a compiled program: {reason}")
        return output

    def clear(self) -> None:
        """Free the programs."""
        with self._lock:
            self._contents = None  # It refers to the model, which refers to this, in a circle.
            self._programs.clear()
            self._reasons.clear()
            self._layouts.clear()

    def _compute(self, model: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Compute a call by a program.

        Raises:
            UncompilableError: why Paddle computes it.
        """
        contents = self._update_contents(model)  # This drops programs of earlier contents.
        precision = self._choose_precision(model, args, kwargs)
        call = next((entry.call for entry in reversed(CALL_STACK.entries) if entry.call.denoiser is model), None)
        parts = model, contents, precision, *replace_numbers(model, args, kwargs)
        model_call = make_call(*parts, StepValues(call))
        model_call.require_compilable()
        if _openvino_process not in (None, os.getpid()):
            raise UncompilableError("this process was forked, and OpenVINO's threads are in the first one")
        if call is not None and call.state.config.differs_by_step:
            self._require_timestep(model_call)
            # Only now, as reading what earlier steps left sets the call's timestep and begins a step of the cache.
            model_call = make_call(*parts, StepValues.read(call))
        key = self._find_key(model_call)
        if key in self._reasons:
            raise UncompilableError(self._reasons[key])
        program = self._programs.get(key)
        if program is None:
            outputs = self._make_program(model_call)
        else:
            outputs = program.run(model_call.tensors)
            self._programs.move_to_end(key)
        model_call.step_values.keep(outputs)
        return outputs.returned

    def _update_contents(self, model: Layer) -> Contents:
        """Return the model's contents as they are now; drop programs of earlier ones."""
        contents = self._contents
        if contents is None or not contents.is_current():
            with CHANGE_LOCK:
                contents = Contents(model)
            # A program may read weights at the addresses that they had when it was made.
            if self._contents is not None and self._contents.addresses != contents.addresses:
                self.clear()
            self._contents = contents
        contents.reader.read(CALL_STACK.pipeline_call)
        if contents.reader.hash != self._recent_hashes[0]:
            self._recent_hashes = contents.reader.hash, self._recent_hashes[0]
            for found in (self._programs, self._reasons):
                for key in [key for key in found if key[0].weights_hash not in self._recent_hashes]:
                    del found[key]
            self._layouts = {kind: x for kind, x in self._layouts.items() if kind.weights_hash in self._recent_hashes}
        return contents

    def _choose_precision(self, model: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the precision of a call, which is not 8 bits at the end."""
        if self.precision != "int8":
            return self.precision
        timestep = find_timestep(name_arguments(list_parameters(model), args, kwargs))
        is_last = timestep is not None and np.max(np.asarray(timestep)) <= _LAST_TIMESTEP
        return self._last_precision if is_last else self.precision

    def _require_timestep(self, model_call: ModelCall) -> None:
        """Refuse a model that embeds another timestep than it gets."""
        from ppdiffusers_tome.compilation.trace import embeds_input

        # FLUX multiplies its timestep by 1000, and models cut the fraction off a number, but not off a tensor.
        key = model_call.contents.description_hash, model_call.arguments
        if key not in self._keeps_timestep:
            self._keeps_timestep[key] = embeds_input(model_call)
        if not self._keeps_timestep[key]:
            raise UncompilableError("it embeds another timestep than it gets, and its settings depend on the step")

    def _find_key(self, model_call: ModelCall) -> Any:
        """Return the key of a call's program: its kind and merged tokens."""
        layouts = self._layouts.get(model_call.kind)  # None before the first program of the kind
        return model_call.kind, None if layouts is None else model_call.count_merged(layouts)

    def _make_program(self, model_call: ModelCall) -> CallOutputs:
        """Make a call's program; return its first outputs, compared with Paddle's."""
        global _openvino_process
        # These import OpenVINO, which may be missing.
        from ppdiffusers_tome.compilation.comparison import compare_outputs, compute_unless_noted, find_note
        from ppdiffusers_tome.compilation.program import Program
        from ppdiffusers_tome.compilation.trace import trace_call

        begin = time.perf_counter()
        name = type(model_call.model).__name__
        try:
            trace = trace_call(model_call)
            self._layouts[model_call.kind] = trace.layouts
            shape = " ".join(str(list(x.shape)) for x in model_call.tensors[:1])
            show_progress(f"{name} for {shape} is being compiled in {model_call.precision} ...")
            note = find_note(model_call, trace.layouts)
            # Paddle computes before there is a program, as both hold memory.
            expected = compute_unless_noted(model_call, note)
            _openvino_process = os.getpid()
            program = Program(trace, model_call.precision, self.threads)
            outputs = program.run(model_call.tensors)
            if expected is not None:
                compare_outputs(outputs, expected, model_call.precision, note)
        except Exception as error:  # Code of the model, of Paddle or of OpenVINO may raise anything.
            kind = "" if isinstance(error, UncompilableError) else f"{type(error).__name__}: "
            reason = f"{kind}{' '.join(str(error).split())[-300:]}"
            self._reasons[self._find_key(model_call)] = reason
            raise UncompilableError(reason) from None
        show_progress(f"{name} was compiled in {time.perf_counter() - begin:.1f} s")
        self._programs[self._find_key(model_call)] = program
        self._drop_oldest()
        return outputs

    def _drop_oldest(self) -> None:
        """Drop the programs used longest ago, beyond the bound of memory."""
        held = sum(program.num_bytes for program in self._programs.values())
        for key, program in list(self._programs.items())[:-2]:
            if held > _MOST_BYTES:
                del self._programs[key]
                held -= program.num_bytes


def compile_model(model: Layer, precision: str, threads: int) -> None:
    """Put programs in place of a model's ``forward``, inside of ToMe's overrides."""
    vars(model)[COMPILED] = CompiledModel(precision, threads)
    replace_inner_forward(model, None, MethodType(_run_compiled, model))


def uncompile_model(model: Layer) -> None:
    """Put back what stood in a model before ``compile_model``; free its programs."""
    compiled = vars(model).pop(COMPILED, None)
    replace_inner_forward(model, MethodType(_run_compiled, model), None)
    if compiled is not None:
        compiled.clear()


def is_replaceable(model: Layer) -> bool:
    """Return whether only ToMe and programs stand in place of ``forward``."""
    return find_inner_forward(model) in (None, MethodType(_run_compiled, model))


@paddle.jit.not_to_static
def _run_compiled(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in place of a model's ``forward``."""
    psdb.fallback(**FALLBACK)
    compiled = vars(model).get(COMPILED)
    if compiled is None:  # After ``uncompile_model``, a function that other code put around this one still calls it.
        return type(model).forward(model, *args, **kwargs)
    return compiled.run(model, args, kwargs)

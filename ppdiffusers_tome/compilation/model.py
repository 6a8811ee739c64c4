"""A compiled model: the function in place of its ``forward``, and its programs.

Each kind of call has a program, made when it is first met: the shapes of its inputs, the constants among them, and the
model as it is then. What cannot become a program is computed by Paddle, which a warning tells once.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from types import MethodType
from typing import TYPE_CHECKING, Any

import paddle
from paddle.jit.sot import psdb
from paddle.nn import Layer

from ppdiffusers_tome.compilation.contents import Contents, Snapshot, take_snapshot
from ppdiffusers_tome.compilation.structure import Structure, put_tensors, take_tensors
from ppdiffusers_tome.cpu.attention import has_kernels, replace_processors, restore_processors
from ppdiffusers_tome.cpu.convolution import replace_convolutions, restore_convolutions
from ppdiffusers_tome.errors import ToMeTypeError, UncompilableError
from ppdiffusers_tome.messages import show_progress, warn_user
from ppdiffusers_tome.patching.arguments import list_parameters
from ppdiffusers_tome.patching.call_stack import CALL_STACK
from ppdiffusers_tome.patching.models import COMPILED
from ppdiffusers_tome.patching.override import find_inner_forward, replace_inner_forward
from ppdiffusers_tome.patching.overrides.denoiser import TIMESTEPS
from ppdiffusers_tome.patching.paddle_compat import FALLBACK, convert_while_tracing
from ppdiffusers_tome.patching.state.calls import WATCHERS
from ppdiffusers_tome.version import __version__

if TYPE_CHECKING:
    from ppdiffusers_tome.compilation.program import Program

# The precisions, and the largest difference of a program's result from Paddle's with which it is used: the root of the
# mean square of the difference over that of the result.
BOUNDS = {"float32": 0.001, "bfloat16": 0.1}
# Each program has the model's weights once more; programs with so many bytes of them are kept, and at least two.
_MOST_BYTES = 12 * 2**30
_INPUT_TYPES = {"float32", "int64", "int32", "bool"}  # of tensors among a call's arguments


class CompiledModel:
    """The programs of a model, in a precision and on some threads.

    It ``brings_kernels`` where ``compile_model`` put onnxruntime's kernels, which ``uncompile_model`` takes off.
    """

    def __init__(self, precision: str, threads: int, *, brings_kernels: bool) -> None:
        self.precision, self.threads, self.brings_kernels = precision, threads, brings_kernels
        self._lock = threading.RLock()  # a program computes one call at a time, and a trace replaces weights
        self._process = os.getpid()
        self._contents: Contents | None = None
        self._by_kind: dict[Any, Program | None] = {}  # of the present contents; None: Paddle computes it
        self._programs: OrderedDict[Any, Program] = OrderedDict()  # by digest, the last used last, also of others
        self._warned: set[str] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModel:
        return CompiledModel(self.precision, self.threads, brings_kernels=self.brings_kernels)

    def __reduce__(self) -> Any:
        raise ToMeTypeError("a compiled model cannot be pickled; call uncompile_cpu first, and compile_cpu on the copy")

    def run(self, layer: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Compute a call of the model by a program, or by Paddle."""
        run_paddle = MethodType(type(layer).forward, layer)
        if not paddle.in_dynamic_mode():
            return convert_while_tracing(run_paddle)(*args, **kwargs)
        if os.getpid() != self._process:  # whose other threads, one of which may have held the lock, are gone
            self._warn_of_fallback(layer, "this process was forked, and OpenVINO's threads are in the first one")
            return run_paddle(*args, **kwargs)
        with self._lock:
            try:
                program, tensors = self._find_program(layer, args, kwargs)
            except UncompilableError as error:
                output = run_paddle(*args, **kwargs)  # which raises an error of the user's own
                self._warn_of_fallback(layer, error)
                return output
            if program is None:
                return run_paddle(*args, **kwargs)
            self._programs.move_to_end(program.digest)
            for frame in CALL_STACK.frames:
                if frame.call.denoiser is layer:  # whose blocks are in the program
                    frame.call.state.awaits_blocks = False
            return program.run(tensors)

    def _find_program(
        self, layer: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Program | None, list[paddle.Tensor]]:
        """Find or make a call's program, and list its tensors."""
        tensors: list[paddle.Tensor] = []
        arguments = take_tensors(_replace_numbers(layer, args, kwargs), tensors)
        contents = self._update_contents(snapshot := take_snapshot(layer))
        if obstacle := contents.find_obstacle(snapshot.settings):
            raise UncompilableError(obstacle)
        _require_compilable(contents, tensors)
        kind = (arguments, *snapshot.settings, *((tuple(x.shape), str(x.dtype)) for x in tensors))
        if kind not in self._by_kind:
            try:
                self._by_kind[kind] = self._make_program(layer, contents, arguments, tensors)
            except UncompilableError:
                self._by_kind[kind] = None
                raise
        return self._by_kind[kind], tensors

    def _update_contents(self, snapshot: Snapshot) -> Contents:
        """Return the model's contents; drop programs of other ones."""
        before = self._contents
        if before is not None and not before.is_outdated(snapshot):
            return before
        self._contents = contents = Contents(snapshot)
        self._by_kind.clear()
        if before is None or (before.addresses, before.samples) != (contents.addresses, contents.samples):
            self._programs.clear()
        return contents

    def _make_program(
        self, layer: Layer, contents: Contents, arguments: Structure, tensors: Sequence[paddle.Tensor]
    ) -> Program:
        """Make a call's program, whose first result is compared with Paddle's."""
        # Which need OpenVINO.
        from ppdiffusers_tome.compilation.program import Program
        from ppdiffusers_tome.compilation.trace import trace_call

        begin, name = time.perf_counter(), type(layer).__name__
        try:
            trace = trace_call(layer, arguments, tensors)
            if contents.is_outdated(take_snapshot(layer)):  # as attention maps, which a program would not keep
                raise UncompilableError("an attention processor keeps something of every call")
            if trace.digest in self._programs:  # the model changed back
                return self._programs[trace.digest]
            show_progress(f"{name} for {' '.join(str(list(x.shape)) for x in tensors[:1])} is being compiled ...")
            program = Program(trace, self.precision, self.threads)
            self._compare(program, layer, contents, arguments, tensors)
        except Exception as error:  # of code of the model, of Paddle or OpenVINO
            kind = "" if isinstance(error, UncompilableError) else f"{type(error).__name__}: "
            raise UncompilableError(f"{kind}{' '.join(str(error).split())[-300:]}") from error
        show_progress(f"{name} was compiled in {time.perf_counter() - begin:.1f} s")
        self._programs[trace.digest] = program
        if len(self._programs) > max(2, _MOST_BYTES // max(1, contents.num_bytes)):
            _, oldest = self._programs.popitem(last=False)
            self._by_kind = {kind: each for kind, each in self._by_kind.items() if each is not oldest}
        return program

    def _compare(
        self, program: Program, layer: Layer, contents: Contents, arguments: Structure,
        tensors: Sequence[paddle.Tensor],
    ) -> None:  # fmt: skip
        """Refuse a program whose result differs from Paddle's; note that it does not."""
        from ppdiffusers_tome.compilation.comparison import measure_difference, name_note_file

        note = name_note_file(__version__, program.digest, contents.samples, self.precision)
        if os.path.isfile(note):  # False too where Path raises, as in a folder without permission
            return
        args, kwargs = put_tensors(arguments, tensors)
        difference = measure_difference(program.run(tensors), type(layer).forward(layer, *args, **kwargs))
        if not difference <= BOUNDS[self.precision]:
            raise UncompilableError(
                f"its result in {self.precision} differs from Paddle's by {difference:.2g}, more than "
                f"{BOUNDS[self.precision]:g}"
            )
        with suppress(OSError):  # else the next process compares again
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()

    def _warn_of_fallback(self, layer: Layer, reason: Any) -> None:
        message = f"{type(layer).__name__} is computed by Paddle, not by a compiled program: {reason}"
        if message not in self._warned:
            self._warned.add(message)
            warn_user(message)


def _require_compilable(contents: Contents, tensors: Sequence[paddle.Tensor]) -> None:
    """Refuse a call that no program computes."""
    types = {str(x.dtype).removeprefix("paddle.") for x in tensors}
    if WATCHERS:
        raise UncompilableError("merging is being recorded")
    if paddle.is_grad_enabled() and any(not x.stop_gradient for x in (*tensors, *contents.weights)):
        raise UncompilableError("gradients are recorded; call it under paddle.no_grad()")
    if paddle.is_autocast_enabled():
        raise UncompilableError("paddle.amp.auto_cast is on")
    if not types <= _INPUT_TYPES or not all(x.place.is_cpu_place() for x in tensors):
        raise UncompilableError(f"it gets tensors in {', '.join(sorted(types))}; give float32 on the CPU")


@paddle.jit.not_to_static
def _run_compiled(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in place of a model's ``forward``."""
    psdb.fallback(**FALLBACK)
    compiled = vars(layer).get(COMPILED)
    if compiled is None:  # a function that other code put around this one still calls it
        return type(layer).forward(layer, *args, **kwargs)
    return compiled.run(layer, args, kwargs)


def compile_model(layer: Layer, precision: str, threads: int) -> None:
    """Put programs in place of a model's ``forward``, inside of ToMe's overrides.

    What Paddle computes, such as the results to compare with, gets onnxruntime's kernels: Paddle's own attention takes
    gigabytes for a large image.
    """
    before = vars(layer).get(COMPILED)
    brings_kernels = before.brings_kernels if before else bool(find_spec("onnxruntime")) and not has_kernels(layer)
    if brings_kernels:
        replace_processors(layer)
        replace_convolutions(layer)
    vars(layer)[COMPILED] = CompiledModel(precision, threads, brings_kernels=brings_kernels)
    replace_inner_forward(layer, None, MethodType(_run_compiled, layer))


def uncompile_model(layer: Layer) -> None:
    """Put back what stood in a model before ``compile_model``."""
    compiled = vars(layer).pop(COMPILED, None)
    replace_inner_forward(layer, MethodType(_run_compiled, layer), None)
    if compiled is not None and compiled.brings_kernels:
        restore_processors(layer)
        restore_convolutions(layer)


def is_replaceable(layer: Layer) -> bool:
    """Return whether nothing but ToMe and programs stands in place of a model's ``forward``."""
    return find_inner_forward(layer) in (None, MethodType(_run_compiled, layer))


def _replace_numbers(layer: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Replace timesteps that are numbers by tensors, as numbers are constants of a program.

    Most models cut off the fraction of a number, and not that of a tensor, so a fraction stays.
    """

    def convert(name: str, value: Any) -> Any:
        is_whole = name in TIMESTEPS and isinstance(value, (int, float)) and value == value // 1
        return paddle.to_tensor([int(value)], "int64", paddle.CPUPlace()) if is_whole else value

    names = [*list_parameters(layer), *[""] * len(args)]
    return tuple(map(convert, names, args)), {name: convert(name, value) for name, value in kwargs.items()}

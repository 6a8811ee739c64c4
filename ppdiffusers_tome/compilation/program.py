"""A program that OpenVINO compiled for one kind of call."""

from collections.abc import Sequence

import openvino
import paddle

from ppdiffusers_tome.compilation.arrays import share_memory
from ppdiffusers_tome.compilation.model_call import CallOutputs
from ppdiffusers_tome.compilation.precision import keep_precise
from ppdiffusers_tome.compilation.quantization import quantize_layers
from ppdiffusers_tome.compilation.structure import put_tensors
from ppdiffusers_tome.compilation.trace import Trace
from ppdiffusers_tome.errors import UncompilableError
from ppdiffusers_tome.machine import choose_float_precision, count_usable_cores, give_memory_back, measure_used_memory


class Program:
    """A compiled program and what is needed to call it."""

    def __init__(self, trace: Trace, precision: str, threads: int) -> None:
        give_memory_back()
        self._before = measure_used_memory()
        self._inputs, self._outputs = trace.inputs, trace.outputs
        self._num_outputs = len(trace.openvino_model.outputs)
        # In 8 bits, the layers that stay in float are in bfloat16 where the processor has it.
        is_rounded = precision != "float32" and choose_float_precision() == "bfloat16"
        if is_rounded:
            keep_precise(trace.openvino_model)
        # A step that skips nearly all layers may have none for 8 bits.
        if precision == "int8" and not quantize_layers(trace.openvino_model) and not trace.has_skipped:
            raise UncompilableError("it has no layers to compute in 8 bits; give float32")
        settings = {"INFERENCE_PRECISION_HINT": "bf16" if is_rounded else "f32", "INFERENCE_NUM_THREADS": threads}
        # With fewer threads than cores, several processes may run, whose pinned threads would share the first cores.
        settings["ENABLE_CPU_PINNING"] = threads >= count_usable_cores()
        self._request = openvino.Core().compile_model(trace.openvino_model, "CPU", settings).create_infer_request()
        self.num_bytes = 0  # Its packed weights and inner tensors, which are there after the first call.

    def run(self, tensors: Sequence[paddle.Tensor]) -> CallOutputs:
        """Compute the call for the tensors in its arguments."""
        self._request.infer(share_memory(*(tensors[number] for number in self._inputs)), share_inputs=True)
        if not self.num_bytes:
            give_memory_back()
            self.num_bytes = max(1, measure_used_memory() - self._before)
        found = self._request.output_tensors[: self._num_outputs]
        results = [paddle.to_tensor(each.data, place=paddle.CPUPlace()) for each in found]
        return CallOutputs(*put_tensors(self._outputs, results))

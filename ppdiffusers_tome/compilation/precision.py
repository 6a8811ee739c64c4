"""The numbers of a program in bfloat16 that stay in float32.

bfloat16 has 8 significant bits. It makes 980 of timestep 981: another embedding, and other destinations for merging.
Similarities that are rounded to it make many destinations equal.
"""

from functools import lru_cache
from typing import Any

import openvino
from openvino import opset15

# Operators that lead from tokens to the similarities among which the largest are found.
_PASSED = {"Add", "Gather", "MatMul", "Multiply", "Power", "ReduceMax", "ReduceSum", "Reshape"}
_MARKED = b"""<net name="marked" version="11"><layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data shape="1" element_type="f32"/>
<rt_info><attribute name="precise" version="0"/></rt_info>
<output><port id="0" precision="FP32"><dim>1</dim></port></output></layer>
<layer id="1" name="y" type="Result" version="opset1">
<input><port id="0" precision="FP32"><dim>1</dim></port></input></layer>
</layers><edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/></edges></net>"""


def keep_precise(model: Any) -> None:
    """Keep embeddings of timesteps, indices and similarities in float32.

    OpenVINO computes in float32 what leads to an output, back to the last layer with weights or product of matrices. So
    angles and indices become outputs, behind those of the model. Products of matrices need the mark ``precise``.
    """
    nodes = model.get_ops()
    model.add_results([opset15.result(node) for node in nodes if _is_angle_or_index(node)])
    key, mark = _read_mark()
    ahead, seen = [node for node in nodes if node.get_type_name() == "TopK"], set()
    while ahead:
        node = ahead.pop()
        node.set_rt_info(mark, key)
        for value in node.input_values():
            before = value.get_node()
            if before.get_name() not in seen and _leads_to_similarities(before):
                seen.add(before.get_name())
                ahead.append(before)


def _is_angle_or_index(node: Any) -> bool:
    name = node.get_type_name()
    return name in ("Sin", "Cos") or (name == "Convert" and node.get_output_element_type(0).is_integral())


def _leads_to_similarities(node: Any) -> bool:
    name, inputs = node.get_type_name(), [value.get_node().get_type_name() for value in node.input_values()]
    if name == "Add":  # A sum of two activations is the residual around a block.
        return "Constant" in inputs
    return name in _PASSED and not (name == "MatMul" and "Constant" in inputs)  # A constant factor is a layer's weight.


@lru_cache(maxsize=1)
def _read_mark() -> tuple[str, Any]:
    """Read the mark and its name from a text, the only way in Python."""
    [marked] = openvino.Core().read_model(_MARKED, b"").get_parameters()
    [key] = (info := marked.get_rt_info())
    return key, info[key]

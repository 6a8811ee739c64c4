"""In a program in bfloat16, keep in float32 what a rounded number would turn into another one.

Of timestep 981 bfloat16, with its 8 bits, makes 980: another embedding, and other destinations for merging. Of many
destinations it finds several equally near. OpenVINO computes in float32 what is marked ``precise``, and Python gets
that mark from a model's text alone.
"""

from functools import lru_cache
from typing import Any

import openvino

# What leads from a timestep or from tokens to a choice; all else, such as a norm or a layer with weights, ends the walk.
_PASSED = {
    "Add", "Broadcast", "Convert", "Divide", "Gather", "MatMul", "Multiply", "Power", "ReduceMax", "ReduceSum",
    "Reshape", "Squeeze", "Unsqueeze",
}  # fmt: skip
_MARKED = b"""<net name="marked" version="11"><layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data shape="1" element_type="f32"/>
<rt_info><attribute name="precise" version="0"/></rt_info>
<output><port id="0" precision="FP32"><dim>1</dim></port></output></layer>
<layer id="1" name="y" type="Result" version="opset1">
<input><port id="0" precision="FP32"><dim>1</dim></port></input></layer>
</layers><edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/></edges></net>"""


def keep_choices_precise(model: Any) -> None:
    """Mark angles and choices, such as an index, and what leads to them."""
    key, mark = _read_mark()
    ahead, seen = [node for node in model.get_ops() if _chooses(node)], set()
    while ahead:
        node = ahead.pop()
        node.set_rt_info(mark, key)
        for value in node.input_values():
            before = value.get_node()
            if before.get_name() not in seen and before.get_type_name() in _PASSED and not _has_weights(before):
                seen.add(before.get_name())
                ahead.append(before)


def _chooses(node: Any) -> bool:
    name = node.get_type_name()
    to_integer = name == "Convert" and node.get_output_element_type(0).is_integral()
    return to_integer or name in ("TopK", "Sin", "Cos")


def _has_weights(node: Any) -> bool:
    """Return whether a node is a linear layer."""
    inputs = [value.get_node().get_type_name() for value in node.input_values()]
    return node.get_type_name() == "MatMul" and "Constant" in inputs


@lru_cache(maxsize=1)
def _read_mark() -> tuple[str, Any]:
    [marked] = openvino.Core().read_model(_MARKED, b"").get_parameters()
    [key] = (info := marked.get_rt_info())
    return key, info[key]

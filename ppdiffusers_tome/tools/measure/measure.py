"""Former names of ``memory``, until the benchmarks have moved."""

from ppdiffusers_tome.tools.measure.memory import Meter, ResidentMemory
from ppdiffusers_tome.tools.measure.memory import explain_peak as memory_meaning
from ppdiffusers_tome.tools.measure.memory import get_tensor_bytes as tensor_bytes

__all__ = ["Meter", "ResidentMemory", "memory_meaning", "tensor_bytes"]

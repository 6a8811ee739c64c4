"""Former names of ``system``, until the benchmarks have moved."""

from ppdiffusers_tome.tools.measure.system import describe_machine as measured_on

__all__ = ["measured_on"]

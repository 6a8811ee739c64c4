"""Former name of ``stats``, until the benchmarks have moved."""

from ppdiffusers_tome.tools.measure.stats import Spread

__all__ = ["Spread"]

"""What a measurement was made on."""

from __future__ import annotations

import os
import platform
from typing import Any

from ppdiffusers_tome.tools.measuring.measure import usable_cores


def measured_on() -> dict[str, Any]:
    """What a reader must know to repeat a measurement."""
    import paddle
    import ppdiffusers

    return {
        "device": paddle.get_device(),
        "processor": platform.processor() or platform.machine(),
        "cores": usable_cores(),
        "threads": os.environ.get("OMP_NUM_THREADS", "unset"),
        "paddle": paddle.__version__,
        "ppdiffusers": ppdiffusers.__version__,
    }

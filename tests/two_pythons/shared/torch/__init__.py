"""As much of torch as is asked how many GPUs there are."""

from __future__ import annotations

import os
from types import SimpleNamespace

cuda = SimpleNamespace(device_count=lambda: int(os.environ.get("STAND_IN_GPUS", "0")))

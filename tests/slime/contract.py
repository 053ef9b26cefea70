"""Our generate under the contract of slime's own tests, whose arguments hold neither checkpoint nor engine nor task.

What they leave out is filled in from the environment, and then our own function is called, nothing else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from orl_slime import generate as ours

VARIABLE = "ORL_CONTRACT"  # {"arguments": {...}, "metadata": {...}}


async def generate(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False) -> Any:
    """`orl_slime.generate.generate` with a whole host around it."""
    given = json.loads(os.environ[VARIABLE])
    for name, value in given["arguments"].items():
        setattr(args, name, value)
    sample.metadata = given["metadata"]
    played = await ours.generate(args, sample, sampling_params, evaluation=evaluation)
    assert (played.status.value, played.reward) == ("completed", 1.0), played
    return played

"""A gallery of OpenReward environments, each with one habit that an agent's host must bear, and a server for them.

Real ones, on the SDK's own server, on loopback: what is tested against them is the protocol, not a fake of it. They are
deterministic: the same task answers the same calls with the same texts and rewards, and `drawers` makes whole task sets
from a seed. Import this package only to serve: it brings the whole SDK.

    with serve(seed=7) as served:                                  # on a thread: state and requests can be looked at
    with serve_apart(seed=7) as url:                               # in a process of its own, for measurements
    python -m orl_testing.environments --port 0 --seed 7   # the same by hand; prints its address

`orl_testing.proxy` puts faults between a client and any of them.
"""

import os

os.environ.setdefault("OPENREWARD_LOG_LEVEL", "ERROR")
os.environ.setdefault("OPENREWARD_DISABLE_UPDATE_CHECK", "1")

from orl_testing.environments.base import NAN_REWARD, PIXEL
from orl_testing.environments.broken import (
    OUTPUTS,
    Failing,
    FailingSetup,
    Hanging,
    HangingTeardown,
    NanReward,
    SlowSetup,
    Trouble,
)
from orl_testing.environments.listed import Compared, Duplicates, Endless
from orl_testing.environments.plain import Conversation, Echo, Indented, Picture, Telltale, Terminal
from orl_testing.environments.seeded import drawers
from orl_testing.environments.server import GALLERY, Served, serve, serve_apart

__all__ = [
    "GALLERY",
    "NAN_REWARD",
    "OUTPUTS",
    "PIXEL",
    "Compared",
    "Conversation",
    "Duplicates",
    "Echo",
    "Endless",
    "Failing",
    "FailingSetup",
    "Hanging",
    "HangingTeardown",
    "Indented",
    "NanReward",
    "Picture",
    "Served",
    "SlowSetup",
    "Telltale",
    "Terminal",
    "Trouble",
    "drawers",
    "serve",
    "serve_apart",
]

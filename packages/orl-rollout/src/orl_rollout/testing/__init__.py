"""Fakes and stand-ins for tests of agents and trainers, ours and yours: no GPU, no platform, loopback only."""

from orl_rollout.testing.proxy import Mishap, MishapKind, Proxy
from orl_rollout.testing.scripted import ScriptedEngine, ScriptedSession
from orl_rollout.testing.sglang import Recorded, SglangServer
from orl_rollout.testing.sglang_wire import Fault, FaultKind, logprobs_of

__all__ = [
    "Fault",
    "FaultKind",
    "Mishap",
    "MishapKind",
    "Proxy",
    "Recorded",
    "ScriptedEngine",
    "ScriptedSession",
    "SglangServer",
    "logprobs_of",
]

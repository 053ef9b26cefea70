"""Fakes and stand-ins for tests of agents and trainers, ours and yours: no GPU, no platform, loopback only."""

from orl_rollout.testing.proxy import Mishap, MishapKind, Proxy
from orl_rollout.testing.scripted import ScriptedEngine, ScriptedSession
from orl_rollout.testing.sglang import Recorded, SglangServer
from orl_rollout.testing.sglang_faults import Fault, FaultKind, seeded_faults
from orl_rollout.testing.sglang_model import logprobs_of
from orl_rollout.testing.sglang_scheduler import Pace

__all__ = [
    "Fault",
    "FaultKind",
    "Mishap",
    "MishapKind",
    "Pace",
    "Proxy",
    "Recorded",
    "ScriptedEngine",
    "ScriptedSession",
    "SglangServer",
    "logprobs_of",
    "seeded_faults",
]

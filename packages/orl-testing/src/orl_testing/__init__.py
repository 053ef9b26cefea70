"""Fakes and stand-ins for tests of agents and trainers, ours and yours: no GPU, no platform, loopback only."""

from orl_testing.proxy import Mishap, MishapKind, Proxy
from orl_testing.scripted import ScriptedEngine, ScriptedSession
from orl_testing.sglang.faults import Fault, FaultKind, seeded_faults
from orl_testing.sglang.model import logprobs_of
from orl_testing.sglang.server import Recorded, SglangServer
from orl_testing.vllm import VllmServer

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
    "VllmServer",
    "logprobs_of",
    "seeded_faults",
]

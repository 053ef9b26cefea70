"""Fakes and stand-ins for tests of agents and trainers, ours and yours: no GPU, no platform, no network but loopback."""

from orl_rollout.testing.scripted import ScriptedEngine, ScriptedSession

__all__ = ["ScriptedEngine", "ScriptedSession"]

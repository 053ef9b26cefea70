"""orl-rollout: the effects of orl. It plays tasks against engines and environments, and knows no trainer.

Import the names of `__all__` from here. The package loads none of its parts before a name is asked for. The packages
below are internal:

    loop        rollout(): one episode, thirteen promises; the protocols Engine and Session
    sglang      SGLang behind the Engine protocol
    vllm        vLLM behind the Engine protocol
    openreward  OpenReward behind the Session protocol
    results     a trajectory with its reward and data, metrics of a batch
    episodes    the journal, every trajectory on disk, and its upload to OpenReward
    tasks       prepare and read tasks.jsonl
    run_folder  the files of a run: what a trainer is handed, what it writes, what reports read
    runtime     many rollouts at once: play, judge, record, count; scores of a group
    tokenizer   a Hugging Face tokenizer for the renderer
    edge        what touches network, process and disk: http, retry, secrets, files, interrupt, children
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orl_rollout.engine_connection import Timeouts
    from orl_rollout.episodes.journal import Entry, Journal, read_journal
    from orl_rollout.loop.engine import Engine
    from orl_rollout.loop.loop import rollout
    from orl_rollout.loop.session import Opening, Overloaded, Session, SessionLost
    from orl_rollout.openreward import OpenRewardClient
    from orl_rollout.results.metrics import metrics_of, stats_of
    from orl_rollout.results.outcome import Outcome
    from orl_rollout.run_folder.contract import LocalEngine, Plan, Run, Trainer
    from orl_rollout.runtime.circuit_breaker import CircuitBreaker
    from orl_rollout.runtime.runtime import RolloutRequest, Runtime
    from orl_rollout.runtime.stack import open_runtime
    from orl_rollout.sglang.client import SglangEngine
    from orl_rollout.tasks.file import read_tasks
    from orl_rollout.tasks.prepare import prepare
    from orl_rollout.tokenizer.tokenizer import load_tokenizer
    from orl_rollout.vllm.client import VllmEngine

__all__ = [
    "CircuitBreaker",
    "Engine",
    "Entry",
    "Journal",
    "LocalEngine",
    "OpenRewardClient",
    "Opening",
    "Outcome",
    "Overloaded",
    "Plan",
    "RolloutRequest",
    "Run",
    "Runtime",
    "Session",
    "SessionLost",
    "SglangEngine",
    "Timeouts",
    "Trainer",
    "VllmEngine",
    "load_tokenizer",
    "metrics_of",
    "open_runtime",
    "prepare",
    "read_journal",
    "read_tasks",
    "rollout",
    "stats_of",
]

_NAMES = {
    "engine_connection": "Timeouts",
    "episodes.journal": "Entry Journal read_journal",
    "loop.engine": "Engine",
    "loop.loop": "rollout",
    "loop.session": "Opening Overloaded Session SessionLost",
    "openreward": "OpenRewardClient",
    "results.metrics": "metrics_of stats_of",
    "results.outcome": "Outcome",
    "run_folder.contract": "LocalEngine Plan Run Trainer",
    "runtime.circuit_breaker": "CircuitBreaker",
    "runtime.runtime": "RolloutRequest Runtime",
    "runtime.stack": "open_runtime",
    "sglang.client": "SglangEngine",
    "tasks.file": "read_tasks",
    "tasks.prepare": "prepare",
    "tokenizer.tokenizer": "load_tokenizer",
    "vllm.client": "VllmEngine",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __dir__() -> list[str]:  # help() and completion show the names that are not loaded yet
    return [*globals(), *__all__]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

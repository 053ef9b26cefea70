"""slime's `--custom-generate-function-path orl_slime.generate.generate`: one rollout, written into slime's Sample.

It never imports slime: the host has loaded itself before it calls us. An exception that left `generate` would end the
job; only the breaker's may, and that of a configuration which cannot be played.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from orl_cluster.hooks import generate as cluster
from orl_cluster.hooks.samples import fail
from orl_cluster.hooks.worker import run_of
from orl_core.datum import Datum
from orl_core.errors import ConfigError, RunAborted
from orl_core.trajectory import Generation

from orl_slime import replay


async def generate(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False) -> Any:
    """Play the task of `sample.metadata` and return `sample`, or a list where reasoning is stripped.

    What becomes of it, and what is raised: `orl_cluster.hooks.generate.generate`. slime, fully async, drops the group
    of an exception and calls again: then samples fail at once, and `orl_slime.log.log_rollout` raises it.
    """
    run = run_of(args)
    if run.ended:
        if evaluation:
            raise RunAborted(run.ended)
        fail(sample)
        return [sample] if run.stripped else sample
    return await cluster.generate(_Slime(args), sample, sampling_params, evaluation=evaluation)


class _Slime:
    """slime as a Host."""

    def __init__(self, args: Any) -> None:
        self.args = args

    def payload(self, *, evaluation: bool) -> Mapping[str, Any]:
        return {"return_routed_experts": True} if replay.routing(self.args) and not evaluation else {}

    def step(self) -> int | None:
        return getattr(sys.modules.get("slime.rollout.sample_hooks"), "_current_rollout_id", None)

    def loses_lists(self) -> str:
        if getattr(self.args, "partial_rollout", False):
            return "--partial-rollout"
        path = getattr(self.args, "rollout_function_path", None) or ""
        return f"--rollout-function-path {path}" if "fully_async" in path else ""

    def key(self, sample: Any) -> str | None:
        return getattr(sample, "session_id", None)

    def aborted(self) -> bool:
        host = sys.modules.get("slime.rollout.sglang_rollout")
        return bool(host and host.GenerateState(self.args).aborted)

    def complete(self, sample: Any, datum: Datum | None, generations: Sequence[Generation]) -> None:
        replay.write(self.args, sample, datum, generations)

    async def play(self, sample: Any, sampling: Mapping[str, Any]) -> None:
        host = sys.modules.get("slime.rollout.sglang_rollout")
        if host is None:
            raise ConfigError(f"row {sample.index}: its metadata is no task of `orl prepare`, and slime is not there")
        await host.generate(self.args, sample, sampling)

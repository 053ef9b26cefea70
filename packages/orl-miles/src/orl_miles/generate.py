"""miles' `--custom-generate-function-path orl_miles.generate.generate`: one rollout, written into miles' Sample.

It never imports miles: the host has loaded itself before it calls us. `generate` is for miles' class API, which tells
us of an abort by its state; `generate_legacy` has the older signature, for `MILES_USE_LEGACY_ROLLOUT_V1=1`, where the
state is one for the process.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from orl_cluster.hooks import generate as cluster
from orl_cluster.hooks.group_scores import flat
from orl_core.datum import Datum
from orl_core.errors import ConfigError, OrlError
from orl_core.trajectory import Generation

from orl_miles import replay


class RunEnded(BaseException):
    """The run is over. No Exception, because miles logs one and goes on to the next group, for ever."""


async def generate(input: Any) -> Any:  # noqa: A002  miles tells the API by this name
    """Play the task of `input.sample.metadata`: a GenerateFnInput in, a GenerateFnOutput out.

    What becomes of it: `orl_cluster.hooks.generate.generate`. A failure is FAILED, and ABORTED where miles puts
    another group in the place of one that was: fully async, and with its filter `check_no_aborted`.

    Raises:
        RunEnded: too many rollouts end in ERROR, or the configuration cannot be played.
    """

    def by_miles(sample: Any, sampling: Mapping[str, Any]) -> Awaitable[Any]:
        own = dataclasses.replace(input, sample=sample, sampling_params=sampling)
        return _module("miles.rollout.generate_hub.single_turn", sample).generate(own)

    host = _Miles(input.args, lambda: input.state.aborted, by_miles)
    samples = await _generate(host, input.sample, input.sampling_params, evaluation=input.evaluation)
    return sys.modules[type(input).__module__].GenerateFnOutput(samples=samples)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Our one option of miles' command line, for a run that `orl train miles` did not begin."""
    parser.add_argument("--orl-config", metavar="PATH", default=None, help="the configuration of orl, a YAML file")


generate.add_arguments = add_arguments  # type: ignore[attr-defined]


async def generate_legacy(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False) -> Any:
    """The same with the signature of miles' v1: the sample comes back, or a list where reasoning is stripped."""

    def aborted() -> bool:
        host = sys.modules.get("miles.rollout.sglang_rollout")
        return bool(host and host.GenerateState(args).aborted)

    def by_miles(sample: Any, sampling: Mapping[str, Any]) -> Awaitable[Any]:
        return _module("miles.rollout.sglang_rollout", sample).generate(args, sample, sampling)

    return await _generate(_Miles(args, aborted, by_miles), sample, sampling_params, evaluation=evaluation)


async def _generate(host: _Miles, sample: Any, sampling: Mapping[str, Any], *, evaluation: bool) -> Any:
    try:
        if getattr(sample, "adapter", None) is not None:
            raise ConfigError(f"row {sample.index}: it trains an adapter of several, and orl asks for one alone")
        if getattr(host.args, "group_rm", False):
            raise ConfigError("--group-rm: miles asks its reward model for whole groups, and orl's rewards are there")
        samples = await cluster.generate(host, sample, sampling, evaluation=evaluation)
    except OrlError as fault:
        raise RunEnded(str(fault)) from fault
    if not evaluation and _replaces_aborted(host.args):
        for one in flat([samples]):
            if one.status is type(one).Status.FAILED:
                one.status = type(one).Status.ABORTED
    return samples


def _replaces_aborted(args: Any) -> bool:
    dynamic_filter = getattr(args, "dynamic_sampling_filter_path", None) or ""
    return bool(getattr(args, "fully_async", False)) or dynamic_filter.endswith(".check_no_aborted")


def _module(name: str, sample: Any) -> Any:
    if name not in sys.modules:
        raise ConfigError(f"row {sample.index}: its metadata is no task of `orl prepare`, and `{name}` is not there")
    return sys.modules[name]


class _Miles:
    """miles as a Host."""

    def __init__(
        self, args: Any, aborted: Callable[[], bool], by_miles: Callable[[Any, Mapping[str, Any]], Awaitable[Any]]
    ) -> None:
        self.args = args
        self.aborted = aborted
        self._by_miles = by_miles

    def payload(self, *, evaluation: bool) -> Mapping[str, Any]:
        lora = sys.modules.get("miles.utils.lora")
        adapter = {"lora_path": lora.LORA_ADAPTER_NAME} if lora and lora.lora_rollout_enabled(self.args) else {}
        return adapter if evaluation else adapter | replay.payload(self.args)

    def step(self) -> int | None:
        return None

    def loses_lists(self) -> str:
        return "--partial-rollout" if getattr(self.args, "partial_rollout", False) else ""

    def key(self, sample: Any) -> str | None:
        return getattr(sample, "routing_key", None) or getattr(sample, "session_id", None)

    def complete(self, sample: Any, datum: Datum | None, generations: Sequence[Generation]) -> None:
        replay.write(self.args, sample, generations)
        sample.validate()

    async def play(self, sample: Any, sampling: Mapping[str, Any]) -> None:
        await self._by_miles(sample, sampling)
        sample.validate()

"""miles' `--custom-generate-function-path orl_miles.generate.generate`: one rollout, written into miles' Sample.

It never imports miles, which has loaded itself before it calls us. `generate` is for miles' class API, which hands us
its state with the abort flag. `generate_legacy` has the older signature, for `MILES_USE_LEGACY_ROLLOUT_V1=1`, where the
state is one for the process.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from orl_cluster.hooks.generate import Host, keeps_rollouts
from orl_cluster.hooks.generate import generate as generate_in
from orl_cluster.hooks.group_scores import flat
from orl_core.datum import Datum
from orl_core.errors import ConfigError, OrlError
from orl_core.trajectory import Generation

from orl_miles import replay
from orl_miles.hooks import MILES


class RunEnded(BaseException):
    """The run is over. No Exception, because miles logs one and goes on to the next group, for ever."""


async def generate(input: Any) -> Any:  # noqa: A002  miles tells the API by this name
    """Play the task of `input.sample.metadata`: a GenerateFnInput in, a GenerateFnOutput out.

    See `orl_cluster.hooks.generate.generate` for what becomes of it. A failure is FAILED, or ABORTED where miles
    replaces the group of an aborted sample: fully async, and with its filter `check_no_aborted`.

    Raises:
        RunEnded: too many rollouts end in ERROR, or the configuration cannot be played.
    """

    async def play(sample: Any, sampling: Mapping[str, Any]) -> None:
        own = dataclasses.replace(input, sample=sample, sampling_params=sampling)
        await MILES.loaded("rollout.generate_hub.single_turn", sample).generate(own)
        sample.validate()

    host = _host(input.args, input.sample, lambda: input.state.aborted, play, evaluation=input.evaluation)
    samples = await _generate(host, input.sample, input.sampling_params)
    return sys.modules[type(input).__module__].GenerateFnOutput(samples=samples)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add our one option to miles' command line, for a run that `orl train miles` did not begin."""
    parser.add_argument("--orl-config", metavar="PATH", default=None, help="the configuration of orl, a YAML file")


generate.add_arguments = add_arguments  # type: ignore[attr-defined]


async def generate_legacy(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False) -> Any:
    """Play with the signature of miles' v1: return the sample, or a list where reasoning is stripped."""

    async def play(sample: Any, sampling: Mapping[str, Any]) -> None:
        await MILES.play(args, sample, sampling)
        sample.validate()

    host = _host(args, sample, partial(MILES.aborted, args), play, evaluation=evaluation)
    return await _generate(host, sample, sampling_params)


def _host(
    args: Any,
    sample: Any,
    aborted: Callable[[], bool],
    play: Callable[[Any, Mapping[str, Any]], Awaitable[None]],
    *,
    evaluation: bool,
) -> Host:
    def complete(sample: Any, datum: Datum | None, generations: Sequence[Generation]) -> None:
        replay.write(args, sample, generations)
        sample.validate()

    lora = sys.modules.get("miles.utils.lora")
    adapter = {"lora_path": lora.LORA_ADAPTER_NAME} if lora and lora.lora_rollout_enabled(args) else {}
    return Host(
        args=args,
        evaluation=evaluation,
        payload=adapter if evaluation else adapter | replay.payload(args),
        routing_key=getattr(sample, "routing_key", None) or getattr(sample, "session_id", None),
        loses_lists="--partial-rollout" if getattr(args, "partial_rollout", False) else "",
        keeps=keeps_rollouts(args),
        aborted=aborted,
        complete=complete,
        play=play,
    )


async def _generate(host: Host, sample: Any, sampling: Mapping[str, Any]) -> Any:
    try:
        if getattr(sample, "adapter", None) is not None:
            raise ConfigError(f"row {sample.index}: it trains an adapter of several, and orl asks for one alone")
        if getattr(host.args, "group_rm", False):
            raise ConfigError("--group-rm: miles asks its reward model for whole groups, and orl's rewards are there")
        samples = await generate_in(host, sample, sampling)
    except OrlError as fault:
        raise RunEnded(str(fault)) from fault
    if not host.evaluation and _replaces_aborted(host.args):
        for one in flat([samples]):
            if one.status is type(one).Status.FAILED:
                one.status = type(one).Status.ABORTED
    return samples


def _replaces_aborted(args: Any) -> bool:
    dynamic_filter = getattr(args, "dynamic_sampling_filter_path", None) or ""
    return bool(getattr(args, "fully_async", False)) or dynamic_filter.endswith(".check_no_aborted")

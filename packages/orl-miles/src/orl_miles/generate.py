"""miles' `--custom-generate-function-path orl_miles.generate.generate`: one rollout, written into miles' Sample.

It never imports miles, which has loaded itself before it calls us. miles' class API hands us its state with the abort
flag.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from orl_cluster.hooks.generate import Host
from orl_cluster.hooks.generate import generate as generate_in
from orl_cluster.hooks.samples import flat
from orl_core import ConfigError, Datum, Generation, OrlError

from orl_miles import replay
from orl_miles.hooks import MILES


class RunEnded(BaseException):
    """The run is over. No Exception, because miles logs one and continues with the next group, for ever."""


async def generate(input: Any) -> Any:  # noqa: A002  miles tells the API by this name
    """Play the task of `input.sample.metadata`: a GenerateFnInput in, a GenerateFnOutput out.

    See `orl_cluster.hooks.generate.generate` for what becomes of it. A failure is FAILED, or ABORTED if miles replaces
    the group of an aborted sample: fully async, and with its filter `check_no_aborted`.

    Raises:
        RunEnded: too many rollouts end in ERROR, or the configuration cannot be played.
    """
    args, sample = input.args, input.sample
    try:
        if getattr(sample, "adapter", None) is not None:
            raise ConfigError(f"row {sample.index} selects one of several LoRA adapters. orl supports one")
        if getattr(args, "group_rm", False):
            raise ConfigError("--group-rm: miles asks its reward model for whole groups, and orl's rewards are there")
        samples = await generate_in(_host(input), sample, input.sampling_params)
    except OrlError as fault:
        raise RunEnded(str(fault)) from fault
    if not input.evaluation and _replaces_aborted(args):
        for one in flat([samples]):
            if one.status is type(one).Status.FAILED:
                one.status = type(one).Status.ABORTED
    return sys.modules[type(input).__module__].GenerateFnOutput(samples=samples)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add our one option to miles' command line, for a run that `orl train miles` did not begin."""
    parser.add_argument("--orl-config", metavar="PATH", default=None, help="the configuration of orl, a YAML file")


generate.add_arguments = add_arguments  # type: ignore[attr-defined]


def _host(call: Any) -> Host:
    args, sample = call.args, call.sample

    async def play(sample: Any, sampling: Mapping[str, Any]) -> None:
        own = dataclasses.replace(call, sample=sample, sampling_params=sampling)
        await MILES.loaded("rollout.generate_hub.single_turn", sample).generate(own)
        sample.validate()

    def complete(sample: Any, datum: Datum | None, generations: Sequence[Generation]) -> None:
        replay.write(args, sample, generations)
        sample.validate()

    lora = sys.modules.get("miles.utils.lora")
    adapter = {"lora_path": lora.LORA_ADAPTER_NAME} if lora and lora.lora_rollout_enabled(args) else {}
    return Host(
        args=args,
        evaluation=call.evaluation,
        payload=adapter if call.evaluation else adapter | replay.payload(args),
        routing_key=getattr(sample, "routing_key", None) or getattr(sample, "session_id", None),
        aborted=lambda: call.state.aborted,
        complete=complete,
        play=play,
    )


def _replaces_aborted(args: Any) -> bool:
    dynamic_filter = getattr(args, "dynamic_sampling_filter_path", None) or ""
    return bool(getattr(args, "fully_async", False)) or dynamic_filter.endswith(".check_no_aborted")

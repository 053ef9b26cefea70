"""A miniature of miles, so that the adapter is tested without it: its Sample, and its way to call a generate."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orl_miles.generate import generate
from orl_miles.hooks import post_process
from orl_testing import SglangServer

from tests.slime import episode, miniature


@dataclass
class Sample(miniature.Sample):
    """The fields of miles' Sample that an adapter touches."""

    routing_key: str | None = None
    rollout_routed_experts: Any = None
    rollout_indexer_topk: Any = None

    def validate(self) -> None:
        assert self.loss_mask is not None
        assert len(self.tokens) > self.response_length == len(self.loss_mask) == len(self.rollout_log_probs or ())
        for rows in (self.rollout_routed_experts, self.rollout_indexer_topk):
            assert rows is None or len(rows) == len(self.tokens) - 1


@dataclass(frozen=True)
class State:
    args: Namespace
    aborted: bool = False


@dataclass(frozen=True)
class GenerateFnInput:
    state: State
    sample: Any
    sampling_params: dict[str, Any]
    evaluation: bool

    @property
    def args(self) -> Namespace:
        return self.state.args


@dataclass(frozen=True)
class GenerateFnOutput:
    samples: Any


class ClassApi(miniature.Miniature):
    """miles' class API."""

    sample = Sample
    post_process = staticmethod(post_process)
    aborted = False

    async def generate(self, sample: Any, sampling: dict[str, Any], evaluation: bool) -> Any:
        return await self.generate_in(self.args, sample, sampling, evaluation, aborted=self.aborted)

    @staticmethod
    async def generate_in(
        args: Namespace, sample: Any, sampling: dict[str, Any], evaluation: bool = False, *, aborted: bool = False
    ) -> Any:
        """One rollout under the arguments `args`."""
        return (await generate(GenerateFnInput(State(args, aborted), sample, sampling, evaluation))).samples


def arguments(checkpoint: Path, folder: Path, url: str, config: Any, **changes: Any) -> Namespace:
    """miles' arguments, as far as an adapter reads them."""
    host, _, port = url.removeprefix("http://").partition(":")
    fields = {
        "hf_checkpoint": str(checkpoint),
        "prompt_data": str(episode.make_tasks(folder / "tasks.jsonl", 2)),
        "metadata_key": "metadata",
        "n_samples_per_prompt": 2,
        "sglang_router_ip": host,
        "sglang_router_port": int(port),
        "rollout_max_context_len": 2000,
        "orl_config": config,
    }
    return miniature.arguments(**fields | changes)


@contextmanager
def hosting(server: SglangServer, checkpoint: Path, folder: Path, config: Any, **changes: Any) -> Generator[ClassApi]:
    """The miniature under `changes`, as `tests.miles.hosting` starts miles itself."""
    yield ClassApi(arguments(checkpoint, folder, server.url, config, **changes))

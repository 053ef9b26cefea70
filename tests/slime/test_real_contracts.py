"""Rewards for every estimator against slime's own normalisation, and slime's own contract tests with our paths."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from orl_cluster.launch.machine.probe import finds
from orl_slime.hooks import post_process

from tests.slime import episode
from tests.slime.contract import VARIABLE
from tests.slime.host import converter, of_slime
from tests.slime.miniature import arguments
from tests.slime.playing import engine
from tests.two_pythons.environment import ROOT

pytestmark = pytest.mark.slime
ESTIMATORS = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline", "reinforce_plus_plus", "ppo")
REWARDS = [1.0, 0.0, 0.5, 0.25, 0.25, 0.25]


def batch(groups: list[list[float]]) -> list[Any]:
    SlimeSample = of_slime("slime.utils.types.Sample")

    pairs = [(group, reward) for group, rewards in enumerate(groups) for reward in rewards]
    return [
        SlimeSample(index=index, group_index=group, reward=reward, loss_mask=[1], response_length=1)
        for index, (group, reward) in enumerate(pairs)
    ]


def by_slime(args: Any, samples: list[Any]) -> tuple[list[float], list[float]]:
    own = {"custom_reward_post_process_path": None, "custom_convert_samples_to_train_data_path": None}
    data = converter(Namespace(**{"use_rollout_routing_replay": False, **own, **vars(args)}))(samples)
    return data["raw_reward"], data["rewards"]


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_on_even_groups_rewards_are_what_slime_makes_of_them(estimator: str, scaled: bool):
    samples = batch([REWARDS[:3], REWARDS[3:]])
    args = arguments(
        advantage_estimator=estimator,
        grpo_std_normalization=scaled,
        n_samples_per_prompt=3,
        rollout_batch_size=2,
        reward_key=None,
    )
    raw, rewards = post_process(args, samples)
    their_raw, theirs = by_slime(args, samples)
    assert raw == their_raw
    assert rewards == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS[:4])
def test_on_uneven_groups_a_group_is_compared_with_itself_alone(estimator: str):
    samples = batch([REWARDS[:2], REWARDS[2:]])
    args = arguments(advantage_estimator=estimator, n_samples_per_prompt=3, rollout_batch_size=2, reward_key=None)
    _, rewards = post_process(args, samples)
    single = arguments(advantage_estimator=estimator, rollout_batch_size=1, reward_key=None)
    theirs = []
    for group in (samples[:2], samples[2:]):
        single.n_samples_per_prompt = len(group)
        theirs += by_slime(single, group)[1]
    assert rewards == pytest.approx(theirs, abs=1e-5)
    # slime itself, in another shape than it expects, took the whole batch for one group until it had a BatchBuilder.
    args.rollout_batch_size = 5
    assert (by_slime(args, samples)[1] == pytest.approx(theirs, abs=1e-2)) == finds("slime.data.batch_builder")


OURS = {
    "path_loading": {
        "--dynamic-sampling-filter-path": "orl_slime.hooks.has_signal",
        "--custom-rm-path": "orl_slime.hooks.reward",
    },
    "runtime_hook": {"--custom-reward-post-process-path": "orl_slime.hooks.post_process"},
}


@pytest.mark.parametrize("file", OURS)
def test_slimes_own_contract_tests_pass_with_our_paths(file: str):
    root = Path(of_slime("slime.__file__")).parents[1]
    test = root / "tests/plugin_contracts" / f"test_plugin_{file}_contracts.py"
    paths = [word for option in OURS[file].items() for word in option]
    command = [sys.executable, str(test), *paths, "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_slimes_generate_contract_passes_in_whole_host(environment: str, checkpoint: Path, tmp_path: Path):
    """By itself it passes for no function that samples, slime's own included: its arguments name no engine."""
    root = Path(of_slime("slime.__file__")).parents[1]
    test = root / "tests/plugin_contracts/test_plugin_generate_contracts.py"
    row = json.loads(episode.make_tasks(tmp_path / "tasks.jsonl", 1).read_text(encoding="utf-8"))
    with engine(checkpoint) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        arguments = {
            "hf_checkpoint": str(checkpoint),
            "sglang_router_ip": host,
            "sglang_router_port": int(port),
            "rollout_max_context_len": 2000,
            "orl_config": episode.settings(environment),
        }
        told = {VARIABLE: json.dumps({"arguments": arguments, "metadata": row["metadata"]})}
        # The real tokenizer library is loaded before slime's test would put an empty module in its place.
        program = "import runpy, sys, transformers; sys.path[0] = {!r}; runpy.run_path(sys.argv[1], None, '__main__')"
        options = ["--custom-generate-function-path", "tests.slime.contract.generate", "-q", "-p", "no:cacheprovider"]
        paths = os.pathsep.join([str(ROOT), *(path for path in sys.path if path)])
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", program.format(str(test.parent)), str(test), *options],
            env={**os.environ, **told, "PYTHONPATH": paths},
            cwd=root,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert server.requests, "our function has played"

"""Deep JSON from outside ends its own rollout at most, on every version of Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from orl_core.trajectory import Generation, StopReason
from orl_rollout.edge.http import retry_after
from orl_rollout.episodes.journal import Journal, read_journal
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.runtime.runtime import RolloutRequest
from orl_testing import ScriptedEngine
from orl_testing import environments as envs

from tests.kit.answering import Answering
from tests.kit.episodes import TOKENIZER, config_of, model, task_of
from tests.kit.runtimes import runtime_of


@pytest.mark.parametrize("depth", [900, 50_000])
@pytest.mark.parametrize("path", ["/messages", "/task_tools", "/call"])
async def test_deep_answer_ends_no_more_than_its_rollout(
    path: str, depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSPHRASE", "deep-secret")
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    body = {
        "/messages": b'[{"role": "user", "blocks": [{"type": "tool_call", "id": "1", "name": "x", "input": %s}]}]',
        "/task_tools": b'{"tools": [{"name": "echo", "input_schema": %s}]}',
        "/call": b'{"ok": true, "output": {"blocks": [], "metadata": %s}}',
    }[path] % deep

    class Deep(Answering):
        answers = {path: (200, [(b"content-type", b"application/json")], body)}

    with envs.serve(envs.Echo, wrap=Deep) as served:
        config = config_of("Echo", served.url, secrets={"passphrase": None})
        async with OpenRewardClient(config) as client:
            with Journal(tmp_path) as journal:
                playing = runtime_of(config, client, journal=journal)
                outcome = await playing.play(RolloutRequest(task=task_of("Echo"), rollout_id="1"), model(("finish",)))
    (entry,) = read_journal(tmp_path)
    assert entry.trajectory.stop_reason is outcome.trajectory.stop_reason
    assert "bug" not in outcome.trajectory.error
    assert depth < 50_000 or outcome.trajectory.stop_reason is StopReason.ERROR


@pytest.mark.parametrize("depth", [65, 900, 1_900])
async def test_deep_arguments_of_a_model_are_its_mistake(
    depth: int, gallery: envs.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSPHRASE", "deep-secret")
    deep = '{"text": ' + "[" * depth + "]" * depth + "}"
    ids = tuple(TOKENIZER.encode_joint(f'<tool_call>\n{{"name": "echo", "arguments": {deep}}}\n</tool_call><|im_end|>'))
    said = Generation(token_ids=ids, logprobs=(-0.5,) * len(ids), finish_reason="stop")
    config = config_of("Echo", gallery.url, secrets={"passphrase": None}, max_turns=3)
    async with OpenRewardClient(config) as client:
        playing = runtime_of(config, client)
        engine = ScriptedEngine([said, *([said] * 30)])
        outcome = await playing.play(RolloutRequest(task=task_of("Echo"), rollout_id="1"), engine)
    assert outcome.trajectory.stop_reason is not StopReason.ERROR, outcome.trajectory.error


@pytest.mark.parametrize("value", ["9" * 400, "1e999", "nan", "-inf", "", None, "Mon, 01 Jan 2024 00:00:00 GMT"])
def test_a_retry_after_is_seconds_within_bounds_or_nothing(value: str | None) -> None:
    seconds = retry_after(value)
    assert seconds is None or 0.0 <= seconds < 1e12

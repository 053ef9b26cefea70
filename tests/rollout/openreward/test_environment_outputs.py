"""The model is shown an environment's outputs; episodes end in unusual ways.

The whole loop plays real sessions on the SDK's own server; faults have tables of their own (test_environment_faults).
"""

from __future__ import annotations

from typing import Any

import pytest
from orl_core.limits import Limits
from orl_core.messages import FailureKind, text_of
from orl_core.trajectory import Generation, RolloutSpec, StopReason, Trajectory
from orl_rollout.loop.loop import rollout
from orl_rollout.openreward import OpenRewardClient
from orl_testing import ScriptedEngine
from orl_testing import environments as envs

from tests.kit.answering import Answering
from tests.kit.episodes import RENDERER, TOKENIZER, config_of, model, task_of

CONTROLS = frozenset(TOKENIZER.added_tokens.values())


async def play(
    name: str, url: str, engine: ScriptedEngine, spec: dict[str, Any] | None = None, **limits: Any
) -> Trajectory:
    task = task_of(name, **(spec or {}))
    async with OpenRewardClient(config_of(name, url)) as client:
        job = RolloutSpec(task=task, rollout_id="k", limits=Limits(**limits))
        return await rollout(job, session=client.session(task), renderer=RENDERER, engine=engine)


def say(text: str) -> Generation:
    ids = tuple(TOKENIZER.encode_joint(f"{text}<|im_end|>"))
    return Generation(token_ids=ids, logprobs=(-0.5,) * len(ids), finish_reason="stop")


def shown(trajectory: Trajectory, turn: int) -> str:
    return TOKENIZER.decode(trajectory.turns[turn].observation)


def controls(trajectory: Trajectory) -> list[list[int]]:
    """The control ids of what the model was shown, turn by turn."""
    return [[token for token in turn.observation if token in CONTROLS] for turn in trajectory.turns]


async def test_a_huge_output_is_cut_with_a_visible_marker(gallery: envs.Served):
    spec = {"at": "tool", "call": 0, "does": "huge"}
    trajectory = await play("Trouble", gallery.url, model(("step",), ("finish",)), spec, tool_result_tokens=100)
    assert len(trajectory.turns[1].observation) < 150
    assert shown(trajectory, 1).count("all work and no play.") > 3
    assert RENDERER.cut("a b " * 10_000, 100)[-12:] in shown(trajectory, 1)
    whole = envs.OUTPUTS["huge"].blocks[0]
    assert text_of(trajectory.turns[0].results[0].content) == whole.text  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("does", ["control", "binary", "empty", "nothing"])
async def test_no_output_makes_a_control_id(gallery: envs.Served, does: str):
    plain = await play("Trouble", gallery.url, model(("step",), ("finish",)))
    for at in ("tool", "prompt"):
        if (at, does) == ("prompt", "nothing"):
            continue
        spec = {"at": at, "call": 0, "does": does}
        trajectory = await play("Trouble", gallery.url, model(("step",), ("finish",)), spec)
        assert trajectory.stop_reason is StopReason.FINISHED
        assert controls(trajectory) == controls(plain)
        if at == "tool":
            assert text_of(trajectory.turns[0].results[0].content) in shown(trajectory, 1)


@pytest.mark.parametrize("parallel", [False, True])
async def test_unusable_answer_is_kept(gallery: envs.Served, parallel: bool):
    """Every call that the server answered has a result, with the answer's own text."""
    spec = {"at": "tool", "call": 1, "does": "nan"}
    trajectory = await play("Trouble", gallery.url, model(("step",), ("step",)), spec, parallel_calls=parallel)
    assert trajectory.stop_reason is StopReason.ERROR
    assert [len(turn.results) for turn in trajectory.turns] == [1, 1]
    error, answer = trajectory.turns[1].results[0].content
    assert "not finite" in text_of((error,))
    assert '"text": "paid"' in text_of((answer,))
    assert trajectory.rewards == ()


@pytest.mark.parametrize("body", [b"<html>no JSON</html>", b"[" * 500, b'{"ok": 7}'])
async def test_answer_of_another_form_is_kept(body: bytes):
    class Other(Answering):
        answers = {"/call": (200, [(b"content-type", b"application/json")], body)}

    with envs.serve(envs.Trouble, wrap=Other) as served:
        trajectory = await play("Trouble", served.url, model(("step",)))
    assert trajectory.stop_reason is StopReason.ERROR
    _, answer = trajectory.turns[0].results[0].content
    assert text_of((answer,)) == body.decode()


@pytest.mark.parametrize("parallel", [False, True])
async def test_an_episode_finishes_once(gallery: envs.Served, parallel: bool):
    """Of two calls that both end it, one after the other the second is not made, side by side the server refuses it."""
    trajectory = await play("Trouble", gallery.url, model(("finish", "finish")), parallel_calls=parallel)
    assert trajectory.stop_reason is StopReason.FINISHED
    assert trajectory.rewards == (1.0,)
    assert trajectory.trainable


@pytest.mark.parametrize("parallel", [False, True])
async def test_a_call_after_the_end_is_not_run(gallery: envs.Served, parallel: bool):
    spec = {"name": f"after {parallel}", "at": "tool", "call": 0, "does": "finished"}
    trajectory = await play("Trouble", gallery.url, model(("step", "step", "step")), spec, parallel_calls=parallel)
    assert trajectory.stop_reason is StopReason.FINISHED
    assert trajectory.rewards == (0.5,)
    assert envs.Trouble.ran[f"after {parallel}"] == 1


async def test_a_hidden_terminal_tool_cannot_be_called_by_name(gallery: envs.Served):
    call = '<tool_call>\n{"name": "submit", "arguments": {"text": "right"}}\n</tool_call>'
    before = gallery.count("/call")
    trajectory = await play("Terminal", gallery.url, ScriptedEngine([say(call), say("wrong")]))
    assert [result.failure for turn in trajectory.turns for result in turn.results] == [FailureKind.UNKNOWN_TOOL, None]
    assert "unknown tool `submit`; the tools are: look" in shown(trajectory, 1)
    assert trajectory.rewards == (0.0,)
    assert gallery.count("/call") - before == 1

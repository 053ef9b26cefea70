"""The rollout loop keeps thirteen promises, each with a test of its name. To change one is to change training.

Those of 7 to 10, how a rollout ends before its time, are in test_loop_endings.py.

 1. A prompt over budget: no turn, MAX_TOKENS, the engine is not called.
 2. An action cut by length is kept and trained, not acted on: MAX_TOKENS. With `retry_cut_actions`, one that the budget
    of its turn cut goes back to the model as a mistake.
 3. A parse failure, unknown tool or invalid argument is answered with the smallest helpful message; `max_invalid` in a
    row end the rollout. Each way to end early has a StopDetail of its own.
 4. Several calls run in order, side by side only on request; the first `finished` ends the episode.
 5. Plain text: the terminal tool if there is one, otherwise a nudge, `max_nudges` times or until `max_turns`. An empty
    text is no answer, and neither is a call that lacks a tag: the model reads which one.
 6. `finished` keeps that turn's reward. A null reward is not 0.
 7. An engine's abort while the host's flag is set: ABORTED. The flag is read before every turn and call.
 8. Faults end in ERROR with the turns so far, never repeating a tool call, never trained.
 9. Deadlines nest: a call past its own is a fault, a rollout past its own is TIMEOUT with its turns, a fault if it has
    none.
10. Cancellation propagates after the session is closed.
11. A tool result over its budget is cut with a visible marker; an image is refused loudly.
12. Evaluation uses the sampling parameters it is given.
13. The breaker ends a run whose rollouts mostly end in ERROR (tests/rollout/runtime/test_circuit_breaker.py), and none
    that loses a batch to a restart (tests/rollout/runtime/test_outages.py).
"""

from __future__ import annotations

import asyncio

import pytest
from orl_core.datum import to_data
from orl_core.errors import SessionError
from orl_core.limits import Limits
from orl_core.messages import FailureKind, TextBlock, ToolCall, ToolResult, text_of
from orl_core.trajectory import Generation, RolloutSpec, StopDetail, StopReason
from orl_rollout.loop.loop import rollout
from orl_rollout.tasks.file import PlainRow, PlainSession, plain_task
from orl_testing import ScriptedEngine, ScriptedSession

from tests.rollout.loop.loop_play import RENDERER, TASK, TOKENIZER, TOOLS, call, play, result, say, session_of, shown


async def test_1_a_prompt_over_budget_is_max_tokens_without_a_turn():
    engine, session = ScriptedEngine([]), session_of()
    trajectory = await play(engine, session, context_tokens=10)
    assert (trajectory.stop_reason, trajectory.turns, engine.requests) == (StopReason.MAX_TOKENS, (), [])


async def test_1_the_three_budgets_are_separate():
    script = [say(call()), say(call()), say(call())]
    size = len(script[0].token_ids)
    engine = ScriptedEngine(script)
    await play(
        engine, session_of(result(), result(), result()), turn_tokens=100, rollout_tokens=100 + size, max_turns=3
    )
    assert [request.sampling["max_new_tokens"] for request in engine.requests] == [100, 100, 100 - size]
    prompt = len(engine.requests[0].token_ids)
    engine = ScriptedEngine(script)
    await play(engine, session_of(result()), context_tokens=prompt + size + 1, max_turns=1)
    assert engine.requests[0].sampling["max_new_tokens"] == size + 1


async def test_1_full_context_ends_the_rollout_with_its_turns():
    engine = ScriptedEngine([say(call()), say(call())])
    await play(engine, session_of(result(), result(finished=True)))
    full = len(engine.requests[1].token_ids)
    trajectory = await play([say(call())], session_of(result()), context_tokens=full)
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.MAX_TOKENS, 1)
    assert trajectory.trainable


async def test_2_action_cut_by_length_trains_and_is_not_acted_on():
    session = session_of()
    trajectory = await play([say(call(), reason="length")], session, retry_cut_actions=False)
    assert trajectory.stop_reason is StopReason.MAX_TOKENS
    assert session.calls == []
    (datum,) = to_data(trajectory, reward=0.0)
    assert datum.trainable
    assert sum(datum.loss_mask) == len(datum.response)


async def test_2_cut_by_a_full_context_is_no_cut_by_the_turn():
    size = len(say(call(), reason="length").token_ids)
    engine = ScriptedEngine([say(call(), reason="length")])
    trajectory = await play(engine, session_of(), turn_tokens=size, retry_cut_actions=False)
    assert (trajectory.stop_reason, trajectory.stop_detail) == (StopReason.MAX_TOKENS, StopDetail.CUT_ACTION)
    engine = ScriptedEngine([say(call(), reason="length")])
    trajectory = await play(engine, session_of(), turn_tokens=size + 1, rollout_tokens=size)
    assert (trajectory.stop_reason, trajectory.stop_detail) == (StopReason.MAX_TOKENS, None)


async def test_2_a_cut_action_goes_back_to_the_model_on_request():
    cut, whole = say("<think>\nHm " + "and " * 20, reason="length"), say(call())
    size = len(cut.token_ids)
    engine, session = ScriptedEngine([cut, whole]), session_of(result(finished=True, reward=1.0))
    trajectory = await play(engine, session, turn_tokens=size, retry_cut_actions=True)
    assert (trajectory.stop_reason, trajectory.stop_detail) == (StopReason.FINISHED, None)
    assert f"cut after {size} tokens" in shown(engine, 1)
    assert engine.requests[1].token_ids[: len(engine.requests[0].token_ids) + size] == (
        engine.requests[0].token_ids + cut.token_ids
    )
    (datum,) = to_data(trajectory, reward=1.0)
    assert sum(datum.loss_mask) == size + len(whole.token_ids)


async def test_2_cut_actions_in_a_row_end_the_rollout():
    cut = say("Hm " * 20, reason="length")
    limits = {"turn_tokens": len(cut.token_ids), "retry_cut_actions": True}
    trajectory = await play([cut] * 4, session_of(), max_invalid=3, **limits)
    assert (trajectory.stop_detail, len(trajectory.turns)) == (StopDetail.CUT_ACTION, 3)
    trajectory = await play([cut] * 4, session_of(), max_invalid=None, max_turns=4, **limits)
    assert (trajectory.stop_reason, trajectory.ending, len(trajectory.turns)) == (StopReason.MAX_TURNS, "max_turns", 4)


async def test_2_a_stop_token_at_the_very_limit_is_a_complete_action():
    whole = say(call())
    cut = Generation(token_ids=whole.token_ids, logprobs=whole.logprobs, finish_reason="length")
    trajectory = await play([cut], session_of(result(finished=True)))
    assert trajectory.stop_reason is StopReason.FINISHED


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (call(name="fly"), FailureKind.UNKNOWN_TOOL, "the tools are: act, look"),
        (call(x='"one"'), FailureKind.INVALID_ARGUMENTS, "$.x"),
        ('<tool_call>\n{"name": "act"}\n</tool_call>', FailureKind.INVALID_ARGUMENTS, '"x" is a required property'),
        ("<tool_call>\n{]\n</tool_call>", FailureKind.INVALID_JSON, "Error"),
        ('<tool_call>\n{"name": "act", "arguments": {"x":', FailureKind.UNCLOSED, "Error"),
    ],
)
async def test_3_a_wrong_call_is_answered_and_the_rollout_goes_on(text: str, kind: FailureKind, words: str):
    engine = ScriptedEngine([say(text), say(call())])
    session = session_of(result(finished=True, reward=1.0))
    trajectory = await play(engine, session)
    assert trajectory.stop_reason is StopReason.FINISHED
    assert [r.failure for turn in trajectory.turns for r in turn.results] == [kind, None]
    assert words in shown(engine, 1)
    assert len(session.calls) == 1


async def test_3_max_invalid_in_a_row_end_the_rollout():
    script = [say(call(name="fly")), say(call(name="fly")), say(call()), *[say(call(name="fly"))] * 3]
    session = session_of(result())
    trajectory = await play(ScriptedEngine(script), session, max_invalid=3)
    assert (trajectory.stop_reason, trajectory.stop_detail) == (StopReason.MAX_TURNS, StopDetail.INVALID_CALLS)
    assert len(trajectory.turns) == 6
    assert trajectory.trainable


async def test_3_without_max_invalid_refusals_last_until_max_turns():
    trajectory = await play([say(call(name="fly"))] * 5, session_of(), max_invalid=None, max_turns=5)
    assert (trajectory.stop_reason, trajectory.stop_detail) == (StopReason.MAX_TURNS, None)
    assert len(trajectory.turns) == 5


async def test_4_calls_run_in_order_until_the_first_finished():
    session = session_of(result("one"), result("two", finished=True, reward=1.0))
    trajectory = await play([say(call(1) + "\n" + call(2) + "\n" + call(3))], session)
    assert trajectory.stop_reason is StopReason.FINISHED
    assert session.calls == [ToolCall(name="act", arguments={"x": x}) for x in (1, 2)]


async def test_4_results_come_back_in_call_order_failures_included():
    engine = ScriptedEngine([say(call(1) + call(name="fly") + call(2)), say(call())])
    trajectory = await play(engine, session_of(result("first"), result("second"), result(finished=True)))
    assert trajectory.stop_reason is StopReason.FINISHED
    text = shown(engine, 1)
    assert text.index("first") < text.index("unknown tool") < text.index("second")


async def test_4_calls_beyond_the_most_are_not_made_and_answered_once():
    engine = ScriptedEngine([say(call() * 40), say(call())])
    session = session_of(*[result()] * 32, result(finished=True))
    trajectory = await play(engine, session)
    assert trajectory.stop_reason is StopReason.FINISHED
    assert len(session.calls) == 33
    assert trajectory.turns[0].results[-1].failure is FailureKind.TOO_MANY_CALLS
    assert "only the first 32" in shown(engine, 1)


@pytest.mark.parametrize("parallel", [False, True])
async def test_4_side_by_side_only_on_request(parallel: bool):
    running, most = 0, 0

    class Slow(ScriptedSession):
        async def call(self, call: ToolCall) -> ToolResult:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            return result(str(call.arguments["x"]))

    engine = ScriptedEngine([say(call(1) + call(2)), say(call(3))])
    await play(engine, Slow(tools=TOOLS), parallel_calls=parallel, max_turns=2)
    assert most == (2 if parallel else 1)
    assert shown(engine, 1).index("\n1\n") < shown(engine, 1).index("\n2\n")


async def test_4_a_fault_beside_a_finished_call_does_not_undo_the_end():
    """Results stay with their calls: the platform and a judge of groups pair them by their places."""
    session = session_of(SessionError("the episode is over"), result("won", finished=True, reward=1.0))
    trajectory = await play([say(call(1) + call(2))], session, parallel_calls=True)
    assert trajectory.stop_reason is StopReason.FINISHED
    assert trajectory.rewards == (1.0,)
    lost, won = trajectory.turns[0].results
    assert "the episode is over" in text_of(lost.content)
    assert text_of(won.content) == "won"


async def test_stripped_reasoning_is_hidden_and_splits_the_data():
    """Cut at its control ids, with the white space after it; all else is what was sampled, id for id."""
    engine = ScriptedEngine(
        [say(f"<think>\nHm {n}.\n</think>\n\nSo:\n{call()}") for n in (1, 2)] + [say(call()), say("<think>\nEnd")]
    )
    session = session_of(result("one"), result("two"), result("three", reward=0.5))
    trajectory = await play(engine, session, strip_reasoning=True, max_nudges=0)
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assistant = f"<|im_start|>assistant\n<think>\n\n</think>\n\nSo:\n{call()}<|im_end|>"
    assert shown(engine, 1).count(assistant) == 1
    assert shown(engine, 2).count(assistant) == 2
    assert "Hm" not in shown(engine, 1) + shown(engine, 2) + shown(engine, 3)
    first, second, rest = to_data(trajectory, reward=0.5)
    for datum, request in ((first, 0), (second, 1), (rest, 3)):
        sampled = engine.requests[request]
        assert datum.prompt + datum.response == sampled.token_ids + sampled.generation.token_ids
    assert {datum.rollout_id for datum in (first, second, rest)} == {"k"}
    assert rest.rewards == ((len(engine.requests[2].generation.token_ids) - 1, 0.5),)
    kept = ScriptedEngine([say(f"<think>\nHm.\n</think>\n\n{call()}"), say("Done.")])
    (whole,) = to_data(await play(kept, session_of(result()), max_nudges=0), reward=0.0)
    assert "<think>\nHm.\n</think>" in TOKENIZER.decode(whole.response)


async def test_5_plain_text_answers_where_there_is_a_terminal_tool():
    session = session_of(result(finished=True, reward=0.5), accepts_text_answer=True)
    trajectory = await play([say("It was the butler.")], session)
    assert trajectory.stop_reason is StopReason.FINISHED
    assert session.answers == ["It was the butler."]
    assert trajectory.rewards == (0.5,)


LOST = 'I act first.\n{"name": "act", "arguments": {"x": 1}}\n</tool_call>'


@pytest.mark.parametrize("in_text", [True, False])
async def test_5_call_without_its_opening_is_named(in_text: bool):
    engine = ScriptedEngine([say(LOST), say(call())])
    session = session_of(result(finished=True), accepts_text_answer=in_text)
    trajectory = await play(engine, session)
    first, second = trajectory.turns
    assert [each.failure for each in (*first.results, *second.results)] == [FailureKind.UNOPENED, None]
    assert "<tool_call>" in text_of(first.results[0].content)
    assert first.failed
    assert (session.answers, len(session.calls)) == ([], 1)


async def test_5_call_in_open_reasoning_is_made():
    session = session_of(result(finished=True, reward=1.0), accepts_text_answer=True)
    trajectory = await play([say(f"<think>\nI act.\n{call()}")], session)
    assert (session.answers, len(session.calls), trajectory.rewards) == ([], 1, (1.0,))


async def test_5_empty_text_is_no_answer():
    engine = ScriptedEngine([say("<think>\nThe butler."), say("The butler.")])
    session = session_of(result(finished=True), accepts_text_answer=True)
    trajectory = await play(engine, session)
    assert (trajectory.stop_reason, session.answers) == (StopReason.FINISHED, ["The butler."])
    assert trajectory.turns[0].nudge in shown(engine, 1)
    assert "empty" in trajectory.turns[0].nudge
    ended = await play([say("")], session_of(accepts_text_answer=True), max_nudges=0)
    assert (ended.stop_reason, ended.stop_detail) == (StopReason.MAX_TURNS, StopDetail.NO_CALL)


async def test_5_plain_row_is_answered_once_whatever_is_said():
    job = RolloutSpec(task=plain_task(PlainRow(prompt="6 x 7?")), rollout_id="k")
    trajectory = await rollout(job, session=PlainSession(), renderer=RENDERER, engine=ScriptedEngine([say("")]))
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.FINISHED, 1)


async def test_5_plain_text_is_nudged_and_then_ends_the_rollout():
    engine = ScriptedEngine([say("Hm."), say("Well."), say("So.")])
    trajectory = await play(engine, session_of(), max_nudges=2)
    assert (trajectory.stop_reason, trajectory.stop_detail) == (StopReason.MAX_TURNS, StopDetail.NO_CALL)
    assert len(trajectory.turns) == 3
    assert "calling a tool" in shown(engine, 1)
    assert ["calling a tool" in turn.nudge for turn in trajectory.turns] == [True, True, False]


async def test_5_every_turn_without_a_call_is_nudged_by_default():
    engine = ScriptedEngine([say("Hm.")] * 4)
    trajectory = await play(engine, session_of(), max_turns=4)
    assert (trajectory.stop_reason, trajectory.stop_detail) == (StopReason.MAX_TURNS, None)
    assert shown(engine, 3).count("calling a tool") == 3


async def test_6_finished_keeps_its_reward_and_null_is_not_zero():
    trajectory = await play([say(call())] * 2, session_of(result(), result(finished=True, reward=0.25)))
    assert trajectory.stop_reason is StopReason.FINISHED
    assert [turn.reward for turn in trajectory.turns] == [None, 0.25]
    assert trajectory.rewards == (0.25,)


async def test_11_a_long_result_is_cut_with_a_visible_marker():
    engine = ScriptedEngine([say(call()), say(call())])
    await play(engine, session_of(result("word " * 5000), result(finished=True)), tool_result_tokens=50)
    grown = len(engine.requests[1].token_ids) - len(engine.requests[0].token_ids) - len(say(call()).token_ids)
    assert grown < 50 + 40
    assert "cut here" in shown(engine, 1)


async def test_11_the_blocks_of_a_result_share_its_budget():
    engine = ScriptedEngine([say(call()), say(call())])
    many = ToolResult(name="act", content=(TextBlock(text="word " * 10),) * 100)
    await play(engine, session_of(many, result(finished=True)), tool_result_tokens=50)
    assert len(engine.requests[1].token_ids) - len(engine.requests[0].token_ids) - len(say(call()).token_ids) < 50 + 40
    assert "cut here" in shown(engine, 1)


async def test_12_sampling_parameters_are_used_and_not_changed():
    job = RolloutSpec(
        task=TASK, rollout_id="k", sampling={"temperature": 0.1, "top_p": 0.5, "max_new_tokens": 7}, evaluation=True
    )
    before = dict(job.sampling)
    engine = ScriptedEngine([say("Hm.", reason="length")])
    await rollout(job, session=session_of(), renderer=RENDERER, engine=engine)
    sampling = engine.requests[0].sampling
    assert (sampling["temperature"], sampling["top_p"], sampling["max_new_tokens"]) == (0.1, 0.5, 7)
    assert sampling["stop_token_ids"] == list(RENDERER.stop_ids)
    assert sampling["no_stop_trim"] is True
    assert sampling["skip_special_tokens"] is False
    assert job.sampling == before


async def test_each_turn_samples_with_a_seed_of_its_own():
    async def seeds(given: int) -> list[int]:
        job = RolloutSpec(task=TASK, rollout_id="k", sampling={"sampling_seed": given})
        engine = ScriptedEngine([say(call()), say(call())])
        await rollout(job, session=session_of(result(), result(finished=True)), renderer=RENDERER, engine=engine)
        return [request.sampling["sampling_seed"] for request in engine.requests]

    first = await seeds(1)
    assert await seeds(1) == first
    assert len({*first, *await seeds(2)}) == 4
    assert all(0 <= seed < 2**31 for seed in first)


async def test_the_trainers_budget_of_a_turn_reaches_the_engine():
    limits = Limits(turn_tokens=5, context_tokens=40_000, rollout_tokens=40_000)
    job = RolloutSpec(task=TASK, rollout_id="k", limits=limits, sampling={"max_new_tokens": 16384})
    engine = ScriptedEngine([say(call())])
    await rollout(job, session=session_of(result(finished=True)), renderer=RENDERER, engine=engine)
    assert engine.requests[0].sampling["max_new_tokens"] == 16384

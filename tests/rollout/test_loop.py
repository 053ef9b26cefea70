"""The rollout loop keeps thirteen promises, each with a test of its name. To change one is to change training.

 1. A prompt over budget: no turn, MAX_TOKENS, the engine is not called.
 2. An action cut by length is kept and trained, not acted on: MAX_TOKENS.
 3. A parse failure, unknown tool or invalid argument is answered with the smallest helpful message; `max_invalid` in a
    row end the rollout.
 4. Several calls run in order, side by side only on request; the first `finished` ends the episode.
 5. Plain text: the terminal tool where there is one, otherwise a nudge, `max_nudges` times.
 6. `finished` keeps that turn's reward. A null reward is not 0.
 7. An engine's abort while the host's flag is set: ABORTED. The flag is read before every turn and call.
 8. Faults end in ERROR with the turns so far, never repeating a tool call, never trained.
 9. Deadlines nest: a call past its own is a fault, a rollout past its own is TIMEOUT with its turns.
10. Cancellation propagates after the session is closed.
11. A tool result over its budget is cut with a visible marker; an image is refused loudly.
12. Evaluation uses the sampling parameters it is given.
13. The breaker ends a run whose rollouts mostly end in ERROR (tests/rollout/test_breaker.py).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from orl_core.datum import to_data
from orl_core.errors import EngineError, SessionError
from orl_core.messages import FailureKind, ImageBlock, TextBlock, ToolCall, ToolResult, ToolSpec
from orl_core.render import Renderer
from orl_core.task import Task
from orl_core.trajectory import Generation, Job, Limits, StopReason, Trajectory
from orl_rollout import loop
from orl_rollout.loop import rollout
from orl_rollout.testing import ScriptedEngine, ScriptedSession
from orl_rollout.testing.scripted import Hang

from tests.tokenizers import tokenizer

TOKENIZER = tokenizer()
RENDERER = Renderer(TOKENIZER)
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TOOLS = (ToolSpec(name="act", parameters=SCHEMA), ToolSpec(name="look"))
TASK = Task(env_name="A/B", deployment_name="A/B", task_spec={"id": 1})


def call(x: Any = 1, name: str = "act") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"x": {x}}}}}\n</tool_call>'


def say(text: str, reason: str = "stop") -> Generation:
    """A generation of `text`, closed where it stops."""
    ids = TOKENIZER.encode_joint(text + ("<|im_end|>" if reason == "stop" else ""))
    return Generation(ids=tuple(ids), logprobs=(-0.5,) * len(ids), finish_reason=reason)  # type: ignore[arg-type]


def result(text: str = "ok", **fields: Any) -> ToolResult:
    return ToolResult(name="act", content=(TextBlock(text=text),), **fields)


async def play(
    engine: ScriptedEngine, session: ScriptedSession, stopped: Any = loop.never, **limits: Any
) -> Trajectory:
    job = Job(task=TASK, key="k", limits=Limits(**limits), sampling={"temperature": 0.7})
    trajectory = await rollout(job, session=session, renderer=RENDERER, engine=engine, stopped=stopped)
    assert session.closed == 1
    return trajectory


def session_of(*script: ToolResult | Exception, **options: Any) -> ScriptedSession:
    return ScriptedSession(script, tools=TOOLS, **options)


def shown(engine: ScriptedEngine, request: int) -> str:
    """What the engine was shown in a request, as text."""
    return TOKENIZER.decode(engine.requests[request].ids)


async def test_1_a_prompt_over_budget_is_max_tokens_without_a_turn():
    engine, session = ScriptedEngine([]), session_of()
    trajectory = await play(engine, session, context_tokens=10)
    assert (trajectory.stop_reason, trajectory.turns, engine.requests) == (StopReason.MAX_TOKENS, (), [])


async def test_1_the_three_budgets_are_separate():
    script = [say(call()), say(call()), say(call())]
    size = len(script[0].ids)
    engine = ScriptedEngine(script)
    await play(
        engine, session_of(result(), result(), result()), turn_tokens=100, rollout_tokens=100 + size, max_turns=3
    )
    assert [request.sampling["max_new_tokens"] for request in engine.requests] == [100, 100, 100 - size]
    prompt = len(engine.requests[0].ids)
    engine = ScriptedEngine(script)
    await play(engine, session_of(result()), context_tokens=prompt + size + 1, max_turns=1)
    assert engine.requests[0].sampling["max_new_tokens"] == size + 1


async def test_1_a_context_that_fills_up_ends_the_rollout_with_its_turns():
    engine = ScriptedEngine([say(call()), say(call())])
    await play(engine, session_of(result(), result(finished=True)))
    full = len(engine.requests[1].ids)
    trajectory = await play(ScriptedEngine([say(call())]), session_of(result()), context_tokens=full)
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.MAX_TOKENS, 1)
    assert trajectory.trains


async def test_2_an_action_cut_by_length_is_kept_and_trained_but_not_acted_on():
    session = session_of()
    trajectory = await play(ScriptedEngine([say(call(), reason="length")]), session)
    assert trajectory.stop_reason is StopReason.MAX_TOKENS
    assert session.calls == []
    (datum,) = to_data(trajectory, reward=0.0)
    assert datum.trains
    assert sum(datum.loss_mask) == len(datum.response)


async def test_2_a_stop_token_at_the_very_limit_is_a_complete_action():
    whole = say(call())
    cut = Generation(ids=whole.ids, logprobs=whole.logprobs, finish_reason="length")
    trajectory = await play(ScriptedEngine([cut]), session_of(result(finished=True)))
    assert trajectory.stop_reason is StopReason.FINISHED


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (call(name="fly"), FailureKind.UNKNOWN_TOOL, "the tools are: act, look"),
        (call(x='"one"'), FailureKind.INVALID_ARGUMENTS, "$.x"),
        ('<tool_call>\n{"name": "act"}\n</tool_call>', FailureKind.INVALID_ARGUMENTS, "'x' is a required property"),
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
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert len(trajectory.turns) == 6
    assert trajectory.trains


async def test_4_calls_run_in_order_and_the_first_finished_ends_the_episode():
    session = session_of(result("one"), result("two", finished=True, reward=1.0))
    trajectory = await play(ScriptedEngine([say(call(1) + "\n" + call(2) + "\n" + call(3))]), session)
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
    session = session_of(result(finished=True, reward=1.0), SessionError("the episode is over"))
    trajectory = await play(ScriptedEngine([say(call(1) + call(2))]), session, parallel_calls=True)
    assert trajectory.stop_reason is StopReason.FINISHED
    assert trajectory.rewards == (1.0,)


async def test_stripped_reasoning_is_not_shown_again_and_splits_the_data():
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
        assert datum.prompt + datum.response == sampled.ids + sampled.generation.ids
    assert {datum.rollout_id for datum in (first, second, rest)} == {"k"}
    assert rest.rewards == ((len(engine.requests[2].generation.ids) - 1, 0.5),)
    kept = ScriptedEngine([say(f"<think>\nHm.\n</think>\n\n{call()}"), say("Done.")])
    (whole,) = to_data(await play(kept, session_of(result()), max_nudges=0), reward=0.0)
    assert "<think>\nHm.\n</think>" in TOKENIZER.decode(whole.response)


async def test_5_plain_text_answers_where_there_is_a_terminal_tool():
    session = session_of(result(finished=True, reward=0.5), answers_in_text=True)
    trajectory = await play(ScriptedEngine([say("It was the butler.")]), session)
    assert trajectory.stop_reason is StopReason.FINISHED
    assert session.answers == ["It was the butler."]
    assert trajectory.rewards == (0.5,)


async def test_5_plain_text_is_nudged_and_then_ends_the_rollout():
    engine = ScriptedEngine([say("Hm."), say("Well."), say("So.")])
    trajectory = await play(engine, session_of(), max_nudges=2)
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert len(trajectory.turns) == 3
    assert "calling a tool" in shown(engine, 1)


async def test_6_finished_keeps_its_reward_and_null_is_not_zero():
    trajectory = await play(ScriptedEngine([say(call())] * 2), session_of(result(), result(finished=True, reward=0.25)))
    assert trajectory.stop_reason is StopReason.FINISHED
    assert [turn.reward for turn in trajectory.turns] == [None, 0.25]
    assert trajectory.rewards == (0.25,)


async def test_7_an_abort_under_the_hosts_flag_is_aborted_and_does_not_train():
    flag = iter([False, True])
    partial = Generation(ids=(5, 6), logprobs=(-1.0, -1.0), finish_reason="abort")
    trajectory = await play(ScriptedEngine([partial]), session_of(), stopped=lambda: next(flag))
    assert trajectory.stop_reason is StopReason.ABORTED
    assert trajectory.turns[0].action_ids == (5, 6)
    assert not trajectory.trains


async def test_7_an_abort_that_nobody_asked_for_is_continued_in_the_same_turn():
    whole = say(call())
    first = Generation(ids=whole.ids[:3], logprobs=(-1.0,) * 3, finish_reason="abort", weight_version="1")
    empty = Generation(ids=(), logprobs=(), finish_reason="abort")
    rest = Generation(ids=whole.ids[3:], logprobs=(-2.0,) * (len(whole.ids) - 3), finish_reason="stop")
    engine = ScriptedEngine([first, empty, rest])
    trajectory = await play(engine, session_of(result(finished=True)))
    assert trajectory.stop_reason is StopReason.FINISHED
    assert [len(turn.generations) for turn in trajectory.turns] == [3]
    assert engine.requests[2].ids == engine.requests[0].ids + whole.ids[:3]
    (datum,) = to_data(trajectory, reward=0.0)
    assert datum.logprobs == first.logprobs + rest.logprobs


@pytest.mark.parametrize(
    ("reads", "calls", "limits"),
    [(0, 0, {}), (1, 0, {}), (2, 1, {}), (1, 0, {"parallel_calls": True}), (2, 2, {"parallel_calls": True})],
)
async def test_7_the_flag_is_read_before_every_turn_and_call(reads: int, calls: int, limits: dict[str, Any]):
    seen = 0

    def stopped() -> bool:
        nonlocal seen
        seen += 1
        return seen > reads

    session = session_of(result(), result())
    trajectory = await play(ScriptedEngine([say(call(1) + call(2))]), session, stopped=stopped, **limits)
    assert trajectory.stop_reason is StopReason.ABORTED
    assert len(session.calls) == calls


async def test_7_the_flag_is_read_before_an_answer_in_text():
    flag, session = iter([False, True]), session_of(result(finished=True), answers_in_text=True)
    trajectory = await play(ScriptedEngine([say("The butler.")]), session, stopped=lambda: next(flag))
    assert (trajectory.stop_reason, session.answers) == (StopReason.ABORTED, [])


FAULTS = {
    "open": lambda: (ScriptedEngine([]), session_of(fails_to_open=OSError("refused"))),
    "engine": lambda: (ScriptedEngine([EngineError("dead")]), session_of()),
    "foreign engine error": lambda: (ScriptedEngine([OSError("dead")]), session_of()),
    "engine later": lambda: (ScriptedEngine([say(call()), EngineError("dead")]), session_of(result())),
    "call": lambda: (ScriptedEngine([say(call())]), session_of(OSError("dead"))),
    "no ids": lambda: (ScriptedEngine([Generation(ids=(), logprobs=(), finish_reason="stop")]), session_of()),
    "image": lambda: (
        ScriptedEngine([say(call())]),
        session_of(ToolResult(name="act", content=(ImageBlock(data="", mime_type="image/png"),))),
    ),
    "broken schema": lambda: (ScriptedEngine([]), ScriptedSession(tools=(ToolSpec(name="a", parameters={"type": 7}),))),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_8_a_fault_ends_in_error_and_is_never_trained(name: str):
    engine, session = FAULTS[name]()
    trajectory = await play(engine, session)
    assert trajectory.stop_reason is StopReason.ERROR
    assert trajectory.error
    assert not trajectory.trains
    assert len(session.calls) <= 1
    assert all(not any(datum.loss_mask) for datum in to_data(trajectory, reward=0.0))


async def test_8_more_ids_than_asked_for_are_the_engines_fault():
    trajectory = await play(ScriptedEngine([say(call())]), session_of(), turn_tokens=3)
    assert trajectory.stop_reason is StopReason.ERROR
    assert "at most 3" in trajectory.error


async def test_9_a_call_past_its_deadline_is_a_fault():
    trajectory = await play(ScriptedEngine([say(call())]), session_of(result(), pause=Hang), call_timeout=0.02)
    assert trajectory.stop_reason is StopReason.ERROR
    assert "0.02 s" in trajectory.error
    assert len(trajectory.turns) == 1


@pytest.mark.parametrize(("engine", "session", "words"), [(Hang, 0.0, "generating"), (0.0, Hang, "calling tool `act`")])
async def test_9_a_turn_past_its_deadline_is_a_fault_of_whom_it_waits_for(engine: float, session: float, words: str):
    async with asyncio.timeout(10):
        trajectory = await play(
            ScriptedEngine([say(call())], pause=engine), session_of(result(), pause=session), turn_timeout=0.05
        )
    assert trajectory.stop_reason is StopReason.ERROR
    assert words in trajectory.error


@pytest.mark.parametrize("train", [False, True])
async def test_9_a_rollout_past_its_deadline_is_a_timeout_with_its_turns(train: bool):
    engine, session = ScriptedEngine([say(call())]), session_of(result(), pause=Hang)
    trajectory = await play(engine, session, rollout_timeout=0.05, train_timeouts=train)
    assert trajectory.stop_reason is StopReason.TIMEOUT
    assert len(trajectory.turns) == 1
    assert trajectory.trains is train


@pytest.mark.parametrize("where", ["engine", "call"])
async def test_10_cancellation_propagates_after_the_session_is_closed(where: str):
    engine = ScriptedEngine([say(call())], pause=Hang if where == "engine" else 0.0)
    session = session_of(result(), pause=Hang)
    task = asyncio.create_task(play(engine, session))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert session.closed == 1


async def test_10_a_close_that_fails_or_hangs_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "CLOSE_SECONDS", 0.02)

    class Stuck(ScriptedSession):
        async def close(self) -> None:
            await super().close()
            await asyncio.Event().wait()

    class Failing(ScriptedSession):
        async def close(self) -> None:
            await super().close()
            raise OSError("gone")

    for kind in (Stuck, Failing):
        trajectory = await play(ScriptedEngine([say(call())]), kind([result(finished=True, reward=1.0)], tools=TOOLS))
        assert trajectory.stop_reason is StopReason.FINISHED


async def test_11_a_long_result_is_cut_with_a_visible_marker():
    engine = ScriptedEngine([say(call()), say(call())])
    await play(engine, session_of(result("word " * 5000), result(finished=True)), tool_result_tokens=50)
    grown = len(engine.requests[1].ids) - len(engine.requests[0].ids) - len(say(call()).ids)
    assert grown < 50 + 40
    assert "cut here" in shown(engine, 1)


async def test_11_the_blocks_of_a_result_share_its_budget():
    engine = ScriptedEngine([say(call()), say(call())])
    many = ToolResult(name="act", content=(TextBlock(text="word " * 10),) * 100)
    await play(engine, session_of(many, result(finished=True)), tool_result_tokens=50)
    assert len(engine.requests[1].ids) - len(engine.requests[0].ids) - len(say(call()).ids) < 50 + 40
    assert "cut here" in shown(engine, 1)


async def test_11_an_image_is_refused_loudly():
    trajectory = await play(*FAULTS["image"]())
    assert "image" in trajectory.error


async def test_12_the_given_sampling_parameters_are_used_and_not_changed():
    job = Job(task=TASK, key="k", sampling={"temperature": 0.1, "top_p": 0.5, "max_new_tokens": 7}, evaluation=True)
    before = dict(job.sampling)
    engine = ScriptedEngine([say("Hm.", reason="length")])
    await rollout(job, session=session_of(), renderer=RENDERER, engine=engine)
    sampling = engine.requests[0].sampling
    assert (sampling["temperature"], sampling["top_p"], sampling["max_new_tokens"]) == (0.1, 0.5, 7)
    assert sampling["stop_token_ids"] == list(RENDERER.stop_ids)
    assert sampling["no_stop_trim"] is True
    assert sampling["skip_special_tokens"] is False
    assert job.sampling == before

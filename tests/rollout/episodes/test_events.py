"""A rollout as the platform's events: their form, and ids that make a repeat change nothing."""

from importlib.metadata import version

import msgspec
from hypothesis import given
from msgspec import structs
from orl_core.messages import FailureKind, Message, ParseFailure, TextBlock, ToolCall, ToolSpec, text_message
from orl_core.tools.format import for_system_prompt
from orl_rollout.episodes.events import events_of
from orl_rollout.episodes.journal import decode_entry, encode_entry

from tests.kit.journalled import config_of, entry_of, trajectory_of
from tests.kit.strategies import trajectories

CONFIG = config_of(trainer={"model": "some/model", "lr": 1e-6, "rollout_batch_size": 32, "advantage_estimator": "grpo"})


def events(trajectory, config=CONFIG, **changes):
    return list(events_of(structs.replace(entry_of(trajectory), **changes), config))


def test_a_rollout_in_the_platforms_form():
    start, *messages, update, last = events(trajectory_of("nul\0 and \ud800"))
    assert start == {
        "eventType": "rollout",
        "eventId": start["eventId"],
        "timestamp": 1_700_000_000_000,
        "runName": "my-run",
        "rolloutName": "r1",
        "environment": "a/b",
        "variant": "b",
        "split": "train",
        "task_spec": {"n": 1},
        "run_info": {
            "model_name": "some/model",
            "run_type": "train",
            "training_stage": "rl",
            "rl_algorithm": "grpo",
            "batch_size": 32,
            "lr": 1e-6,
            "framework": "orl",
            "framework_version": version("orl-rollout"),
        },
    }
    assert [(m["type"], m["content"]) for m in messages] == [
        ("user_message", "Say it."),
        ("reasoning", "hm"),
        ("assistant_message", "nul and \ufffd"),
        ("tool_call", '{"text":"nul and \ufffd"}'),
    ]
    assert (messages[3]["name"], messages[3]["callId"]) == ("say", "0.0")
    assert (update["eventType"], update["eventId"]) == ("rollout_update", start["eventId"])
    assert update["rollout_info"] == {
        "task_index": 3,
        "current_step": 9,
        "temperature": 0.7,
        "max_tokens": 4096,
        "duration_ms": 2500,
        "harness": "orl",
    }
    assert (last["type"], last["callId"], last["reward"], last["isFinished"]) == ("tool_result", "0.0", 1.0, True)
    assert last["metadata"] == {"reward": 0.5, "success": False, "stop_reason": "finished"}
    assert [m["index"] for m in [*messages, last]] == [0, 1, 2, 3, 4]
    assert {m["rolloutEventId"] for m in [*messages, last]} == {start["eventId"]}


def test_what_is_known_is_told_also_where_nothing_was_said():
    start, update = events(structs.replace(trajectory_of(), messages=(), turns=()))
    assert (update["eventType"], update["eventId"]) == ("rollout_update", start["eventId"])
    assert update["rollout_info"]["duration_ms"] == 2500


def test_an_evaluation_is_told_from_training():
    trajectory = trajectory_of()
    evaluated = structs.replace(trajectory, job=structs.replace(trajectory.job, evaluation=True))
    info = events(evaluated)[0]["run_info"]
    assert info["run_type"] == "eval"
    assert "training_stage" not in info


def test_the_opening_in_every_role():
    said = Message(role="assistant", content=(TextBlock(text="Hello"),), reasoning="so", calls=(ToolCall(name="t"),))
    opening = (text_message("system", "Be brief."), said, text_message("tool", "3", name="t"))
    found = events(structs.replace(trajectory_of(), messages=opening, turns=()))
    assert [(m["type"], m["content"]) for m in found if "type" in m] == [
        ("system_message", "Be brief."),
        ("reasoning", "so"),
        ("assistant_message", "Hello"),
        ("tool_call", "{}"),
        ("tool_result", "3"),
    ]


def test_what_could_not_be_parsed_is_what_the_model_wrote():
    failure = ParseFailure(kind=FailureKind.INVALID_JSON, message="bad", text="{oops")
    found = events(trajectory_of(text="", calls=(failure,)))
    assert ("assistant_message", "{oops") in [(event.get("type"), event.get("content")) for event in found]


def system_message(template, *opening):
    tools = (ToolSpec(name="say", description="Say it."),)
    trajectory = structs.replace(trajectory_of(), messages=opening, tools=tools)
    found = events(trajectory, config_of(system_prompt_template=template))
    return [event["content"] for event in found if event.get("type") == "system_message"]


def test_system_prompt_is_sent_once_with_the_tools():
    listed = for_system_prompt((ToolSpec(name="say", description="Say it."),))
    asked, system = text_message("user", "Go."), text_message("system", "Be brief.")
    assert system_message(None, asked) == [listed]
    assert system_message(None, system, asked) == [f"Be brief.\n\n{listed}"]
    assert system_message("Use {tools}!", asked) == [f"Use {listed}!"]
    assert system_message("Use {tools}!", system, asked) == [f"Use {listed}!\n\nBe brief."]


def test_nudges_and_metadata_of_results_are_sent():
    trajectory = trajectory_of(turns=2)
    result = structs.replace(trajectory.turns[0].results[0], metadata={"grader": {"score": 3, "note": None}})
    first = structs.replace(trajectory.turns[0], results=(result,), nudge="Go on.")
    found = events(structs.replace(trajectory, turns=(first, trajectory.turns[1])))
    answers = [event for event in found if event.get("type") == "tool_result"]
    assert answers[0]["metadata"] == {"grader": {"score": 3}}
    assert answers[1]["metadata"]["stop_reason"] == "finished"
    after = found[found.index(answers[0]) + 1]
    assert (after["type"], after["content"]) == ("user_message", "Go on.")


def ids(found):
    return [event["eventId"] for event in found if event["eventType"] != "rollout_update"]


@given(trajectories)
def test_event_ids_are_stable_and_differ_between_rollouts(trajectory):
    entry = decode_entry(encode_entry(entry_of(trajectory)))
    first = ids(events_of(entry, CONFIG))
    assert len(set(first)) == len(first)
    assert ids(events_of(decode_entry(encode_entry(entry)), CONFIG)) == first
    for other in ({"key": entry.key + "'"}, {"time": entry.time + 1e-6}):
        assert not set(ids(events_of(structs.replace(entry, **other), CONFIG))) & set(first)
    assert not set(ids(events_of(entry, config_of(openreward_run_name="another")))) & set(first)


@given(trajectories)
def test_events_are_json_without_nulls_or_nul(trajectory):
    for event in events(trajectory):
        text = msgspec.json.encode(event).decode()
        assert "\\u0000" not in text
        assert None not in event.values()

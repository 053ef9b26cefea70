"""Values that travel as JSON come back equal: tasks, jobs, trajectories, data, configurations; and hostile text."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import msgspec
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from orl_core.config import Reduction, decode_config, load_config
from orl_core.config.yaml import FLOATS
from orl_core.datum import Datum, to_data
from orl_core.errors import ConfigError
from orl_core.messages import Action, ImageBlock, Message, Role, TextBlock, ToolCall, ToolSpec
from orl_core.task import Task, row_of
from orl_core.tools import TOOL_FORMATS, parse
from orl_core.trajectory import Trajectory

from tests.kit.strategies import json_values, masked_trajectories, stripped_trajectories, tasks

hostile = st.sampled_from(("\x00", "<|im_end|>", "\u2028", "é😀", "\ufffd", "}{", "\\ud800", "x" * 5000)) | st.text()


def again(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value), type=type(value))


@given(task=tasks, spec=st.dictionaries(hostile, json_values, max_size=2))
def test_a_task_keeps_its_key(task: Task, spec: dict[str, Any]) -> None:
    for one in (task, msgspec.structs.replace(task, task_spec=spec)):
        assert again(one) == one
        assert again(one).key == one.key


@given(trajectory=masked_trajectories | stripped_trajectories, error=hostile, words=hostile)
def test_a_trajectory_and_its_data(trajectory: Trajectory, error: str, words: str) -> None:
    action = Action(text=words, reasoning=words)
    turns = tuple(msgspec.structs.replace(turn, action=action) for turn in trajectory.turns[:1]) + trajectory.turns[1:]
    trajectory = msgspec.structs.replace(trajectory, error=error, turns=turns)
    assert again(trajectory) == trajectory
    data = to_data(trajectory, reward=0.5)
    assert to_data(again(trajectory), reward=0.5) == data
    assert msgspec.json.decode(msgspec.json.encode(data), type=tuple[Datum, ...]) == data


@given(said=st.lists(hostile | st.text(st.characters(codec=None)), max_size=4).map("<tool_call>".join))
def test_what_a_model_said(said: str) -> None:
    for tool_format in TOOL_FORMATS:
        action = parse(said, tool_format)
        assert again(action) == action


blocks = st.builds(TextBlock, text=hostile) | st.builds(ImageBlock, data=hostile, mime_type=hostile)
arguments = st.dictionaries(hostile, json_values, max_size=2)
messages = st.builds(
    Message,
    role=st.sampled_from(get_args(Role)),
    content=st.lists(blocks, max_size=2).map(tuple),
    calls=st.lists(st.builds(ToolCall, name=hostile, arguments=arguments), max_size=2).map(tuple),
)


@given(opening=st.lists(messages, max_size=3), tool=st.builds(ToolSpec, name=hostile, parameters=arguments), task=tasks)
def test_what_a_session_opens_with(opening: list[Message], tool: ToolSpec, task: Task) -> None:
    assert [again(message) for message in opening] == opening
    assert again(tool) == tool
    assert again(row_of(task)).metadata == task


positive = st.integers(1, 10**6)
bounds = st.floats(-1e9, 1e9)
seconds = st.floats(0.01, 1e6)


@st.composite
def environments(draw: st.DrawFn, longest: float) -> dict[str, Any]:
    low, high = sorted((draw(bounds), draw(bounds)))
    optional = {
        "splits": st.lists(hostile, min_size=1, max_size=2),
        "num_samples": st.none() | positive,
        "nonterminal_reward": st.none() | bounds,
        "reward_reduction": st.sampled_from(get_args(Reduction)),
        "min_reward": st.just(low),
        "max_reward": st.just(high),
        "max_turns": positive,
        "secrets": st.just({"KEY": None, "TOKEN": {"value": None, "hosts": ["example.org"]}}),
        "base_url": st.none() | hostile.map(lambda text: f"http://{quote(text)}"),
        "weight": st.floats(0.1, 10),
        "parallel_calls": st.booleans(),
        "call_timeout": st.none() | seconds.map(lambda timeout: min(timeout, longest)),
    }
    return draw(st.fixed_dictionaries({}, optional=optional))


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    deadlines = sorted(draw(seconds) for _ in range(3))
    names = st.sampled_from(("A/B", "GeneralReasoning/WhoDunIt", "a-b.c/d_9", "a/b/c"))
    rollout = {
        **dict(zip(("call_timeout", "turn_timeout", "rollout_timeout"), deadlines, strict=True)),
        "turn_tokens": draw(positive),
        "max_error_rate": draw(st.floats(0, 1)),
        "train_on": {"text": draw(st.booleans()), "failed_turns": draw(st.booleans())},
    }
    optional = {
        "thinking": st.sampled_from((False, True, "keep", "strip")),
        "system_prompt_template": hostile.map(lambda text: text.replace("{", "{{").replace("}", "}}") + "{tools}"),
        "openreward_run_name": hostile,
        "reward": st.sampled_from((None, "rewards:score", "a.b:C.d")),
        "group_reward": st.fixed_dictionaries({"mode": st.sampled_from(("off", "only", "blend")), "weight": bounds}),
        "rollout": st.just(rollout),
        "trainer": st.fixed_dictionaries(
            {
                "backend": st.sampled_from((None, "slime", "trl")),
                "flags": st.dictionaries(hostile, bounds, max_size=2),
                "mine": st.dictionaries(hostile, bounds, max_size=2),
            }
        ),
    }
    required = {
        "environments": st.dictionaries(names, environments(min(deadlines[1], 300.0)), min_size=1, max_size=3),
        "eval": st.just({}),  # no file of the cookbook, in which `thinking: true` says more
    }
    return draw(st.fixed_dictionaries(required, optional=optional))


@given(tree=configurations())
def test_configuration_survives_json_and_its_public_form(tree: dict[str, Any]) -> None:
    config = decode_config(tree, "tree")
    assert again(config) == config
    public = config.public()
    once = decode_config(public, "public")
    assert once.public() == public
    if "secrets" not in str(tree):
        assert once == config
    assert decode_config(msgspec.json.decode(msgspec.json.encode(public)), "travelled") == once


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configurations")


class Dumper(yaml.SafeDumper):
    """Quotes the text that only YAML 1.2 reads as a number, such as `0E0`."""


Dumper.add_implicit_resolver(*FLOATS)


@example(tree={"environments": {"A/B": {}}, "openreward_run_name": "0E0"})
@given(tree=configurations())
def test_a_configuration_comes_back_from_yaml(folder: Path, tree: dict[str, Any]) -> None:
    path = folder / "config.yaml"
    path.write_text(yaml.dump(tree, Dumper=Dumper), encoding="utf-8")
    assert load_config(path) == decode_config(tree, "tree")


@given(tree=configurations(), data=st.data())
def test_one_wrong_value_is_refused_wherever_it_stands(tree: dict[str, Any], data: st.DataObject) -> None:
    """A key that no Struct has, put into any mapping that a Struct is read from."""
    places = [tree, *tree["environments"].values(), *(tree[key] for key in ("rollout", "trainer") if key in tree)]
    data.draw(st.sampled_from(places))["no such key"] = 1
    with pytest.raises(ConfigError, match="no such key"):
        decode_config(tree, "tree")

"""Every Struct that is written somewhere comes back from its JSON as it was: configurations, trajectories, data."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core.config import RunConfig, decode_config
from orl_core.datum import Datum, to_data
from orl_core.messages import ImageBlock, Message, TextBlock, ToolCall, ToolSpec
from orl_core.task import Task, TaskRow, row_of
from orl_core.trajectory import Trajectory

from tests.strategies import json_values, masked_trajectories, modest, stripped_trajectories, tasks

texts = st.text(max_size=10)
numbers = st.integers(1, 2**40)
seconds = st.floats(1e-3, 1e6)
secrets = st.dictionaries(texts, st.none() | texts | st.fixed_dictionaries({"value": texts, "hosts": st.lists(texts)}))
environments = st.fixed_dictionaries(
    {},
    optional={
        "splits": st.lists(texts, min_size=1, max_size=3),
        "num_samples": st.none() | numbers,
        "nonterminal_reward": st.none() | modest,
        "reward_reduction": st.sampled_from(["sum", "mean", "max", "min", "last"]),
        "max_reward": st.none() | modest,
        "secrets": secrets,
        "base_url": st.none() | texts,
        "weight": st.floats(1e-9, 1e9),
        "call_timeout": st.none() | seconds,
    },
)
configs = st.fixed_dictionaries(
    {"environments": st.dictionaries(st.sampled_from(["A/B", "C/D", "Ä/Ö"]), environments, min_size=1)},
    optional={
        "secrets": secrets,
        "system_prompt_template": st.none() | st.just("{{use}} {tools}"),
        "thinking": st.sampled_from([True, False, "keep", "strip"]),
        "openreward_run_name": texts,
        "reward": st.none() | st.just("module.sub:function"),
        "group_reward": st.fixed_dictionaries({"mode": st.sampled_from(["off", "only", "blend"]), "weight": modest}),
        "rollout": st.fixed_dictionaries({"journal": st.none() | texts, "upload": st.none() | st.booleans()}),
        "eval": st.fixed_dictionaries({"interval": st.none() | numbers, "top_p": st.floats(0.01, 1)}),
        "trainer": st.fixed_dictionaries({"flags": st.dictionaries(texts, st.none() | st.booleans() | modest | texts)}),
    },
)
blocks = st.builds(TextBlock, text=texts) | st.builds(ImageBlock, data=texts, mime_type=texts)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=st.lists(blocks, max_size=3).map(tuple),
    reasoning=texts,
    calls=st.lists(
        st.builds(ToolCall, name=texts, arguments=st.dictionaries(texts, json_values, max_size=3)), max_size=2
    ).map(tuple),
    name=texts,
)
specs = st.builds(ToolSpec, name=texts, description=texts, parameters=st.dictionaries(texts, json_values, max_size=3))


@given(configs)
def test_a_configuration(tree: dict[str, object]) -> None:
    config = decode_config(tree, "tree")
    assert msgspec.json.decode(msgspec.json.encode(config), type=RunConfig) == config
    assert decode_config(msgspec.to_builtins(config), "tree") == config
    public = decode_config(config.public(), "tree")
    assert decode_config(public.public(), "tree") == public


@given(masked_trajectories | stripped_trajectories, st.lists(messages, max_size=3))
def test_a_trajectory(trajectory: Trajectory, opening: list[Message]) -> None:
    trajectory = structs.replace(trajectory, messages=tuple(opening))
    assert msgspec.json.decode(msgspec.json.encode(trajectory), type=Trajectory) == trajectory


@given(masked_trajectories | stripped_trajectories, modest)
def test_data(trajectory: Trajectory, reward: float) -> None:
    data = to_data(trajectory, reward=reward)
    assert msgspec.json.decode(msgspec.json.encode(data), type=tuple[Datum, ...]) == data


@given(tasks)
def test_a_task_and_its_row(task: Task) -> None:
    assert msgspec.json.decode(msgspec.json.encode(row_of(task)), type=TaskRow).metadata == task


@given(specs)
def test_a_tool(spec: ToolSpec) -> None:
    assert msgspec.json.decode(msgspec.json.encode(spec), type=ToolSpec) == spec

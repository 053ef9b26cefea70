"""The configuration: the cookbook's file loads unchanged, and what is wrong is refused with file and path."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.config import RunConfig, decode_config, load_config
from orl_core.errors import ConfigError

COOKBOOK = """\
environments:
  GeneralReasoning/WhoDunIt:
    splits:
      - train
    nonterminal_reward: 0.0
    reward_reduction: sum
    max_turns: 20

secrets:
  openai_api_key: null

system_prompt_template: |
  You act in an environment by calling functions.

  <tools>
  {tools}
  </tools>

  Answer with <tool_call>
  {{"name": <function-name>, "arguments": <args-json-object>}}
  </tool_call>

thinking: false
openreward_run_name: slime-rl-test-openreward
"""


@pytest.fixture
def cookbook(tmp_path: Path) -> Path:
    path = tmp_path / "train_config.yaml"
    path.write_text(COOKBOOK, encoding="utf-8")
    return path


def test_the_cookbooks_file_loads_unchanged(cookbook: Path):
    config = load_config(cookbook)
    environment = config.environments["GeneralReasoning/WhoDunIt"]
    assert (environment.splits, environment.max_turns, environment.nonterminal_reward) == (("train",), 20, 0.0)
    assert config.secrets == {"openai_api_key": None}
    assert config.openreward_run_name == "slime-rl-test-openreward"
    assert config.system_prompt_template is not None
    assert '{"name"' in config.system_prompt_template.format(tools="")


BROKEN = {
    "unknown key": ("max_turns: 20", "max_turn: 20", "$.environments.GeneralReasoning/WhoDunIt", "max_turn"),
    "wrong type": ("max_turns: 20", "max_turns: many", "$.environments", "int"),
    "NaN clamp": ("max_turns: 20", "min_reward: .nan", "$.environments.GeneralReasoning/WhoDunIt.min_reward", "finite"),
    "infinite clamp": ("max_turns: 20", "max_reward: .inf", ".max_reward", "finite"),
    "min over max": ("max_turns: 20", "min_reward: 2\n    max_reward: 1", "$.environments", "above"),
    "unknown reduction": ("reward_reduction: sum", "reward_reduction: median", ".reward_reduction", "median"),
    "zero turns": ("max_turns: 20", "max_turns: 0", ".max_turns", ">= 1"),
    "zero samples": ("max_turns: 20", "num_samples: 0", ".num_samples", ">= 1"),
    "unknown backend": ("thinking: false", "trainer: {backend: verl}", "$.trainer.backend", "verl"),
    "template without closing brace": ("{tools}", "{tools", "$", "system_prompt_template"),
    "template without tools": ("{tools}", "", "$", "tools"),
    "template with an unknown field": ("{tools}", "{tools} {today}", "$", "today"),
    "empty environments": (COOKBOOK[: COOKBOOK.index("secrets:")], "environments: {}\n", "$", "environments"),
    "no organisation": ("GeneralReasoning/WhoDunIt:", "WhoDunIt:", "$", "Organization/Environment"),
    "key twice": ("thinking: false", "thinking: false\nthinking: true", "thinking", "twice"),
    "not YAML": ("thinking: false", "thinking: [", "line", "not YAML"),
    "a date that is none": ("thinking: false", "openreward_run_name: 2024-02-30", "train_config.yaml", "not YAML"),
    "a tag's wrong text": ("thinking: false", "thinking: !!bool perhaps", "train_config.yaml", "not YAML"),
    "a number of many digits": ("max_turns: 20", f"max_turns: {'1' * 5000}", "train_config.yaml", "not YAML"),
    "nested too deep": ("thinking: false", f"thinking: {'[' * 3000 + ']' * 3000}", "train_config.yaml", "not YAML"),
    "address without a scheme": ("max_turns: 20", "base_url: localhost:8080", ".base_url", "http"),
    "nothing trains": (
        "thinking: false",
        "rollout: {train_on: {text: false, calls: false, reasoning: false}}",
        "$.rollout.train_on",
        "nothing would train",
    ),
    "reward that is no function": ("thinking: false", "reward: my_rewards.score", "$", "module:function"),
    "not a mapping": (COOKBOOK, "- 1\n", "$", "mapping"),
    "deadlines that do not nest": (
        "thinking: false",
        "rollout: {call_timeout: 9, turn_timeout: 5}",
        "$.rollout",
        "nest",
    ),
    "an environment's deadline beyond a turn's": (
        "    max_turns: 20",
        "    max_turns: 20\n    call_timeout: 301",
        "$",
        "is above `turn_timeout`, 300",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_with_file_and_path(cookbook: Path, name: str):
    old, new, where, what = BROKEN[name]
    assert old in COOKBOOK
    cookbook.write_text(COOKBOOK.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(cookbook)
    message = str(caught.value)
    assert str(cookbook) in message
    assert where in message
    assert what in message
    assert "\n" not in message


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "none.yaml")


def test_overrides_beat_the_file(cookbook: Path):
    config = load_config(cookbook, ["environments.GeneralReasoning/WhoDunIt.max_turns=3", "trainer.lr=1e-5"])
    assert config.environments["GeneralReasoning/WhoDunIt"].max_turns == 3
    assert config.trainer.lr == 1e-5


@pytest.mark.parametrize("override", ["max_turns", "=1", "thinking.deep=1", "environments..x=1", "trainer.lr=[1"])
def test_a_broken_override_is_refused(cookbook: Path, override: str):
    with pytest.raises(ConfigError, match="override"):
        load_config(cookbook, [override])


def test_a_broken_value_in_an_override_names_its_path(cookbook: Path):
    with pytest.raises(ConfigError, match=r"\$\.trainer\.lr"):
        load_config(cookbook, ["trainer.lr=fast"])


def test_public_holds_no_secret(cookbook: Path):
    config = load_config(
        cookbook,
        ["secrets.openai_api_key=sk-one", "environments.GeneralReasoning/WhoDunIt.secrets={k: {value: sk-two}}"],
    )
    text = msgspec.json.encode(config.public()).decode()
    assert "sk-" not in text
    assert "openai_api_key" in text


def test_public_is_a_configuration_again(cookbook: Path):
    config = load_config(cookbook)
    assert decode_config(config.public(), "orl_config") == config


@pytest.mark.parametrize("tree", [3, [], {}, {"secrets": 3}, {"environments": 3}, {"environments": {"A/B": 3}}])
def test_any_tree_is_refused_with_a_path(tree: object):
    with pytest.raises(ConfigError, match=r"\$"):
        decode_config(tree, "tree")


@given(turns=st.integers(1, 100), low=st.floats(-1e9, 1e9), size=st.floats(0, 1e9))
def test_round_trip(turns: int, low: float, size: float):
    tree = {"environments": {"A/B": {"max_turns": turns, "min_reward": low, "max_reward": low + size}}}
    config = decode_config(tree, "tree")
    assert msgspec.json.decode(msgspec.json.encode(config), type=RunConfig) == config


@pytest.mark.parametrize("name", ["wandb-key", "--wandb_key", "--wandb-key=hush-hush", "sglang-api-key", "hub_token"])
def test_a_secret_among_the_trainers_flags_is_refused_by_name_alone(cookbook: Path, name: str):
    flags = f"trainer: {{flags: {{'{name}': hush-hush}}}}"
    cookbook.write_text(COOKBOOK.replace("thinking: false", flags), encoding="utf-8")
    with pytest.raises(ConfigError, match="WANDB_API_KEY") as caught:
        load_config(cookbook)
    assert "hush" not in str(caught.value)


def test_flags_that_name_a_column_or_count_tokens_are_no_secrets(cookbook: Path):
    flags = "trainer: {flags: {input-key: prompt, --label-key: label, max-tokens-per-gpu: 9, --pad-token: x}}"
    cookbook.write_text(COOKBOOK.replace("thinking: false", flags), encoding="utf-8")
    assert len(load_config(cookbook).trainer.flags) == 4

"""The configuration: the cookbook's file loads unchanged, and what is wrong is refused with file and path."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, structs
from orl_core.config import EnvironmentConfig, RolloutConfig, RunConfig, TrainerConfig, decode_config, load_config
from orl_core.errors import ConfigError
from orl_core.limits import Positive

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
    "wrong type": ("max_turns: 20", "max_turns: many", "$.environments", "whole number"),
    "NaN clamp": ("max_turns: 20", "min_reward: .nan", "$.environments.GeneralReasoning/WhoDunIt.min_reward", "finite"),
    "min over max": ("max_turns: 20", "min_reward: 2\n    max_reward: 1", "$.environments", "above"),
    "unknown reduction": ("reward_reduction: sum", "reward_reduction: median", ".reward_reduction", "median"),
    "zero turns": ("max_turns: 20", "max_turns: 0", ".max_turns", ">= 1"),
    "unknown backend": ("thinking: false", "trainer: {backend: all of them}", "$.trainer.backend", "of"),
    "template without tools": ("{tools}", "", "$", "tools"),
    "empty environments": (COOKBOOK[: COOKBOOK.index("secrets:")], "environments: {}\n", "$", "environments"),
    "base 8": ("max_turns: 20", "max_turns: 010", "line", "leading 0"),
    "base 60": ("max_turns: 20", "max_turns: 1:30", "line", "colon"),
    "fraction in base 60": ("max_turns: 20", "min_reward: -1:30.5", "line", "colon"),
    "version in a name": ("GeneralReasoning/WhoDunIt:", "GeneralReasoning/WhoDunIt@1.2:", "$", "`version`"),
    "no organisation": ("GeneralReasoning/WhoDunIt:", "WhoDunIt:", "$", "Organization/Environment"),
    "key twice": ("thinking: false", "thinking: false\nthinking: true", "thinking", "twice"),
    "not YAML": ("thinking: false", "thinking: [", "line", "not YAML"),
    "nested too deep": ("thinking: false", f"thinking: {'[' * 3000 + ']' * 3000}", "train_config.yaml", "not YAML"),
    "address without a scheme": ("max_turns: 20", "base_url: localhost:8080", "`base_url`", "http"),
    "nothing trains": (
        "thinking: false",
        "rollout: {train_on: {text: false, calls: false, reasoning: false}}",
        "$.rollout.train_on",
        "nothing would train",
    ),
    "mode without a function": ("thinking: false", "reward_mode: add", "$", "`reward_mode` is add"),
    "turn advantages of one's own reward": (
        "thinking: false",
        "turn_advantages: true\nreward: a:b",
        "$",
        "needs `reward_mode: add`",
    ),
    "turn advantages of a maximum": (
        "    reward_reduction: sum\n    max_turns: 20\n",
        "    reward_reduction: max\nturn_advantages: true\n",
        "$",
        "needs `reward_reduction: sum`",
    ),
    "turn advantages of an agent": (
        "thinking: false",
        "turn_advantages: true\nagent: a:b",
        "$",
        "an agent may branch",
    ),
    "turn advantages of a comparison": (
        "thinking: false",
        "turn_advantages: true\ngroup_reward: {mode: only}",
        "$",
        "needs turn rewards",
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


def test_every_mistake_is_named_in_one_error(cookbook: Path):
    text = COOKBOOK.replace("max_turns: 20", "max_turns: 0\n    max_turn: 3").replace("{tools}", "")
    cookbook.write_text(text + "trainer: {backend: 1 2, lr: fast}\nrollout: {call_timeout: 9, turn_timeout: 5}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(cookbook)
    message = str(caught.value)
    assert message.startswith(f"{cookbook}: 6 mistakes: (1) ")
    assert "`$.environments.GeneralReasoning/WhoDunIt.max_turns` is 0: expected whole number >= 1" in message
    assert "has no key `max_turn`: did you mean `max_turns`?" in message
    assert "`$.trainer.backend`: expected name of a trainer or null" in message
    assert '`$.trainer.lr` is "fast": expected number > 0' in message
    assert "`$.rollout`: deadlines must nest" in message
    assert "`$`: `system_prompt_template` has no {tools}" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "tree",
    [
        {"secrets": {"a": ["hush"], "hush": 3, "b": {"value": 7}}},
        {"environments": {"A/B": {"variant": "a/hush", "base_url": "me:hush@host", "secrets": {"k": ["hush"]}}}},
        {"trainer": {"flags": {"--x": ["hush"], "--token": "hush"}, "model": {"hush": 1}}},
        {"reward": "hush hush", "rollout": "hush"},
    ],
)
def test_value_that_could_be_a_secret_is_not_shown(tree: dict[str, Any]):
    with pytest.raises(ConfigError) as caught:
        decode_config({"environments": {"A/B": {}}, **tree}, "tree")
    assert "hush" not in str(caught.value).replace("secrets.hush", "")


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_value_gives_a_configuration_or_one_line(value: object):
    for tree in (
        {"environments": value},
        {"environments": {"A/B": value}},
        {"environments": {"A/B": {}}, "trainer": value},
    ):
        try:
            decode_config(tree, "tree")
        except ConfigError as exc:
            assert str(exc).startswith("tree: ")  # noqa: PT017
            assert len(str(exc).splitlines()) == 1  # noqa: PT017


@pytest.mark.parametrize("tree", [{"\ud800": 1}, {"thinking": "\ud800"}, {"trainer": {"\udfff": "\ud800"}}])
def test_half_a_surrogate_pair_is_refused(tree: dict[str, Any]):
    with pytest.raises(ConfigError, match=r"\$"):
        decode_config({"environments": {"A/B": {}}, **tree}, "tree")


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "none.yaml")


def test_overrides_beat_the_file(cookbook: Path):
    config = load_config(cookbook, ["environments.GeneralReasoning/WhoDunIt.max_turns=3", "trainer.lr=1e-5"])
    assert config.environments["GeneralReasoning/WhoDunIt"].max_turns == 3
    assert config.trainer.lr == 1e-5


@pytest.mark.parametrize("word", ["on", "off", "yes", "no"])
def test_words_of_yaml_1_1_are_text(cookbook: Path, word: str):
    assert load_config(cookbook, [f"openreward_run_name={word}", "thinking=true"]).openreward_run_name == word


@pytest.mark.parametrize("override", ["max_turns", "=1", "thinking.deep=1", "environments..x=1", "trainer.lr=[1"])
def test_a_broken_override_is_refused(cookbook: Path, override: str):
    with pytest.raises(ConfigError, match="override"):
        load_config(cookbook, [override])


def test_mistakes_of_the_file_are_not_blamed_on_the_command_line(cookbook: Path):
    with pytest.raises(ConfigError, match=r"^command line: .*\$\.trainer\.lr"):
        load_config(cookbook, ["trainer.lr=fast"])
    cookbook.write_text(COOKBOOK.replace("max_turns: 20", "max_turns: 0"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^(?!command line).*max_turns"):
        load_config(cookbook, ["trainer.lr=1e-5"])
    with pytest.raises(ConfigError, match=r"^command line: (?!.*max_turns).*lr"):
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


@pytest.mark.parametrize("name", ["wandb-key", "--wandb-key=hush-hush", "hub_token", "--HF_TOKEN", "--apiKey"])
def test_secret_among_flags_is_refused_by_name_alone(cookbook: Path, name: str):
    flags = f"trainer: {{flags: {{'{name}': hush-hush}}}}"
    cookbook.write_text(COOKBOOK.replace("thinking: false", flags), encoding="utf-8")
    with pytest.raises(ConfigError, match="WANDB_API_KEY") as caught:
        load_config(cookbook)
    assert "hush" not in str(caught.value)


def trainer_of(flags: object, backend: str = "slime") -> TrainerConfig:
    tree = {"environments": {"Org/Env": {}}, "trainer": {"backend": backend, "flags": flags}}
    return decode_config(tree, "test").trainer


def test_flags_are_kept_apart_by_trainer() -> None:
    apart = {"slime": {"--eps-clip": 0.3}, "trl": {"beta": 0.1}}
    owns = {backend: trainer_of(apart, backend).own_flags for backend in ("slime", "miles", "trl")}
    assert owns == {**apart, "miles": {}}
    assert trainer_of({"--eps-clip": 0.3}).own_flags == {"--eps-clip": 0.3}


@pytest.mark.parametrize(
    ("flags", "subject"),
    [
        ({"slime": {"x": 1}, "--eps-clip": 0.3}, "`slime` and options of no trainer"),
        ({"slime": {"--wandb-key": "hush-hush"}}, "--wandb-key"),
        ({"--wandb-key=hush-hush": {"x": 1}}, "--wandb-key"),
    ],
)
def test_flags_of_no_trainer_or_two_kinds_are_refused(flags: object, subject: str) -> None:
    with pytest.raises(ConfigError) as caught:
        trainer_of(flags)
    assert subject in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "tree",
    [
        {"environments": {"A/B": {"base_url": "http://user:hush-hush@host:8000"}}},
        {"environments": {"A/B": {"base_url": "https://host/x?token=hush-hush"}}},
        {"environments": {"A/B": {"base_url": ["https://host", "https://me:hush-hush@host"]}}},
        {"environments": {"A/B": {}}, "trainer": {"mine": {"url": "https://me:hush-hush@host"}}},
        {"environments": {"A/B": {}}, "trainer": {"model": "https://me:hush-hush@hub/model"}},
        {"environments": {"A/B": {}}, "trainer": {"flags": {"--wandb-host": "https://me:hush-hush@host"}}},
    ],
)
def test_an_address_with_a_login_is_refused_and_not_shown(tree: dict[str, Any]):
    with pytest.raises(ConfigError) as caught:
        decode_config(tree, "tree")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        (None, ()),
        ("http://a:1/", ("http://a:1",)),
        (["http://a:1", "https://b/x/", "http://a:1/"], ("http://a:1", "https://b/x")),
    ],
)
def test_base_url_is_one_address_or_several(given: object, addresses: tuple[str, ...]):
    tree = {"environments": {"A/B": {"base_url": given}}}
    config = [decode_config(tree, "test") for _ in range(50)][-1]  # a union that msgspec frees wrongly ends the process
    assert config.environment("A/B").addresses == addresses
    assert decode_config(config.public(), "public") == config


def test_only_environment_that_is_wrong_is_one_mistake():
    with pytest.raises(ConfigError) as caught:
        decode_config({"environments": {"A/B": {"base_url": "host:8000"}}}, "test")
    assert str(caught.value).startswith("test: `$.environments.A/B`: `base_url`: expected address")
    assert "empty" not in str(caught.value)


def test_section_of_an_adapter_is_kept_and_decoded_by_it():
    class Own(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        level: Positive = 1

    tree = {"environments": {"toy/Env": {}}, "trainer": {"mine": {"level": 3}, "other": {"x": [1]}}}
    trainer = decode_config(tree, "test").trainer
    assert trainer.section("mine", Own).level == 3
    assert trainer.section("absent", Own) == Own()
    with pytest.raises(ConfigError, match=r"\$\.trainer\.other.*`x`"):
        trainer.section("other", Own)
    wrong = structs.replace(trainer, sections={"mine": {"level": 0}})
    with pytest.raises(ConfigError, match=r"\$\.trainer\.mine\.level"):
        wrong.section("mine", Own)


@pytest.mark.parametrize(
    ("trainer", "key", "place"),
    [
        ({"tp": None}, "tp", "trainer.cluster.tp"),
        ({"miles_path": None}, "miles_path", "trainer.miles.path"),
        ({"trl": {"lora_rank": 8}}, "trl.lora_rank", "trainer.local.lora_rank"),
    ],
)
def test_key_that_moved_is_refused_with_its_place(trainer: dict[str, Any], key: str, place: str):
    with pytest.raises(ConfigError, match=rf"\$\.trainer\.{re.escape(key)}`.*`{re.escape(place)}`"):
        decode_config({"environments": {"toy/Env": {}}, "trainer": trainer}, "test")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: EnvironmentConfig(reward_reduction="average"), "reward_reduction"),  # pyright: ignore[reportArgumentType]
        (lambda: EnvironmentConfig(max_turns=0), "max_turns"),
        (lambda: RolloutConfig(max_error_rate=2.0), "max_error_rate"),
        (lambda: TrainerConfig(lr=-1.0), "lr"),
        (lambda: EnvironmentConfig(splits="train"), "splits"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_values_built_in_python_are_checked(make: Callable[[], object], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make()


def trains_reasoning(path: Path, text: str, *overrides: str) -> bool:
    path.write_text(text, encoding="utf-8")
    config = load_config(path, overrides, {"trainer.model": "some/model"})
    travelled = decode_config(msgspec.json.decode(msgspec.json.encode(config.public())), "orl_config")
    assert travelled.rollout.train_on == config.rollout.train_on
    return config.rollout.train_on.reasoning


THINKS = COOKBOOK.replace("thinking: false", "thinking: true")


def test_thinking_of_a_cookbook_file_masks_reasoning(cookbook: Path) -> None:
    assert not trains_reasoning(cookbook, THINKS)
    assert not trains_reasoning(cookbook, "environments: {Org/Env: {}}\nthinking: true")
    assert trains_reasoning(cookbook, THINKS, "rollout.train_on.reasoning=true")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *(("thinking: true", f"thinking: {value}") for value in ("keep", "strip", "false")),
        ("thinking: true", ""),
        ("max_turns: 20", "max_turns: 20\n    eval_splits: [test]"),
        ("thinking: true", "thinking: true\nrollout: {}"),
        ("thinking: true", "thinking: true\ntrainer: {backend: slime}"),
    ],
)
def test_reasoning_trains_in_every_other_file(cookbook: Path, old: str, new: str) -> None:
    assert old in THINKS
    assert trains_reasoning(cookbook, THINKS.replace(old, new))


@pytest.mark.parametrize("kind", ["configuration", "template"])
def test_configuration_is_read_from_a_pipe(kind: str, cookbook: Path) -> None:
    """`/dev/stdin` and `<(command)` of a shell are such paths."""
    text = COOKBOOK if kind == "configuration" else "{{ messages }}"
    reading, writing = os.pipe()
    try:
        os.write(writing, text.encode())
        os.close(writing)
        pipe = Path(f"/dev/fd/{reading}")
        if kind == "configuration":
            assert load_config(pipe) == load_config(cookbook)
        else:
            assert load_config(cookbook, [f"chat_template={pipe}"]).chat_template == text
    finally:
        os.close(reading)


@pytest.mark.parametrize("value", ["*Xk29hush", "!Xk29hush", "!<Xk29hush", "{value: *Xk29hush}", "!x!Xk29hush y"])
def test_an_error_of_yaml_shows_no_word_of_the_file(cookbook: Path, value: str) -> None:
    cookbook.write_text(f"environments: {{A/B: {{secrets: {{K: {value}}}}}}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 1") as caught:
        load_config(cookbook)
    assert "hush" not in str(caught.value)


def config_of(**more: Any) -> RunConfig:
    return decode_config({"environments": {"A/B": {}}, **more}, "test")


def test_limits_carry_reasoning_and_masks() -> None:
    config = config_of(thinking="strip", rollout={"train_on": {"failed_turns": False}})
    limits = config.limits("A/B")
    assert limits.strip_reasoning
    assert limits.train_on == config.rollout.train_on
    assert not config_of(thinking="keep").limits("A/B").strip_reasoning


def test_the_trainers_context_wins_and_holds_the_rollout() -> None:
    config = config_of(rollout={"context_tokens": 1000})
    given, own = config.limits("A/B", context_tokens=700), config.limits("A/B")
    assert (given.context_tokens, given.rollout_tokens) == (700, 700)
    assert (own.context_tokens, own.rollout_tokens) == (1000, 1000)
    config = config_of(rollout={"context_tokens": 1000, "rollout_tokens": 300})
    assert config.limits("A/B", context_tokens=700).rollout_tokens == 300
    assert [one.context_tokens for one in (config, config_of())] == [1000, 32768]

"""The variables of a chat template: those of transformers, a fixed clock, and the right reasoning switch."""

from __future__ import annotations

import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from msgspec import structs
from orl_core.config import RunConfig, decode_config, load_config
from orl_core.errors import ConfigError, RenderError
from orl_core.messages import ToolCall, ToolSpec, text_message
from orl_core.render import Renderer
from orl_core.render.conversation import for_template
from orl_core.tools.format import for_chat_template
from orl_rollout.run_folder.config_file import date_of
from orl_rollout.runtime.stack import SharedState
from orl_rollout.tokenizer.chat_template import ChatTemplate
from orl_rollout.tokenizer.tokenizer import HFTokenizer, open_renderer, open_tokenizer

from tests.kit.families import FAMILIES, renderer, rows
from tests.kit.families import tokenizer as family_tokenizer
from tests.kit.tokenizers import build, made, template

USER = text_message("user", "Who did it?")
THOUGHT = structs.replace(
    text_message("assistant", ""),
    reasoning="The butler looks pale.",
    calls=(ToolCall(name="look", arguments={"x": 1}),),
)
MUSED = structs.replace(text_message("assistant", "Wait."), reasoning="Hm.")
RESULT = text_message("tool", "A knife.", name="look")
TOOLS = (ToolSpec(name="look", description="Look.", parameters={"type": "object", "properties": {}}),)
CONVERSATIONS = {
    "user": (USER,),
    "system": (text_message("system", "Be brief."), USER),
    "history": (USER, THOUGHT, RESULT),
    "two questions": (USER, MUSED, USER),
}


def prompt(chat_template: ChatTemplate) -> str:
    return chat_template.render([{"role": "user", "content": "Hi."}], tools=None, add_generation_prompt=True)


def config_of(**fields: Any) -> RunConfig:
    return decode_config({"environments": {"a/b": {}}, **fields}, "a test")


def shown(hf: Any, messages: list[dict[str, Any]], tools: Any, variables: dict[str, Any]) -> str:
    """Return the rendering of transformers itself, or that it refuses."""
    try:
        return hf.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False, **variables)
    except (TemplateError, TypeError) as error:
        return type(error).__name__


@pytest.mark.parametrize("thinking", [False, "keep"])
@pytest.mark.parametrize("name", rows([*FAMILIES, "lfm2_2_5"]))
def test_a_template_renders_as_transformers_renders_it(name: str, thinking: Any) -> None:
    family = FAMILIES.get(name)
    hf = build(template(family.template if family else name), vocabulary=(family or FAMILIES["qwen3_6"]).vocabulary)
    tok = HFTokenizer(hf, thinking=thinking)
    for messages in CONVERSATIONS.values():
        for tools in (None, for_chat_template(TOOLS)):
            dicts = for_template(messages, str)
            theirs = shown(hf, dicts, tools, tok.chat_template.variables)
            try:
                ours = tok.apply_chat_template(dicts, tools=tools, add_generation_prompt=True)
            except (TemplateError, TypeError) as error:
                ours = type(error).__name__
            assert ours == theirs


@pytest.mark.published
def test_a_template_with_a_date_of_its_own_keeps_it() -> None:
    tok = HFTokenizer(build(template("llama3_1"), vocabulary=FAMILIES["llama3_1"].vocabulary))
    assert "Today Date: 26 Jul 2024" in prompt(tok.chat_template)


def test_the_clock_is_the_runs_and_stands_still() -> None:
    text = "{{ strftime_now('%Y-%m-%d %H:%M:%S.%f%z') }}"
    now = made(text)
    assert prompt(now) == prompt(now)
    assert prompt(made(text, clock=datetime(2026, 2, 28, 23, 59, 59))) == "2026-02-28 23:59:59.000000"


def test_date_is_the_runs_then_the_checkpoints_then_today(tmp_path: Path) -> None:
    other = config_of(chat_template_date="2026-02-27")
    (tmp_path / "config.json").write_text(json.dumps(other.public()))
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text('{"model_type": "qwen3"}')
    checkpoint = str(tmp_path / "checkpoint")
    for trainer in ({"model": checkpoint}, {"load": checkpoint}, {"load": str(tmp_path)}):
        assert date_of(config_of(trainer=trainer)) == date(2026, 2, 27)
    stated = config_of(trainer={"model": checkpoint}, chat_template_date="2025-01-01")
    assert date_of(stated) == date(2025, 1, 1)
    began = date.today()
    assert began <= date_of(config_of(trainer={"model": "Org/Model"})) <= date.today()


@pytest.mark.parametrize(("fields", "told"), [({}, True), ({"chat_template_date": "2026-02-28"}, False)])
def test_a_date_that_no_run_has_fixed_is_told(
    fields: dict[str, Any], told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build("{{ strftime_now('%Y-%m-%d') }}").save_pretrained(tmp_path)
    shown = prompt(open_tokenizer(config_of(**fields), str(tmp_path)).chat_template)
    assert ("chat_template_date" in caplog.text) == told
    assert told or shown == "2026-02-28"


@pytest.mark.published
@pytest.mark.parametrize("name", ["gpt_oss", "lfm2_2_5", "lfm2_2_5_v2", "qwen3_6"])
def test_reasoning_in_the_history_of_an_opening_is_shown(name: str) -> None:
    if name in FAMILIES:
        made = renderer(name)
        text = family_tokenizer(name).decode(made.open(CONVERSATIONS["history"], TOOLS))
    else:
        tok = HFTokenizer(build(template(name)))
        text = tok.apply_chat_template(
            for_template(CONVERSATIONS["history"], str), tools=None, add_generation_prompt=True
        )
    assert "The butler looks pale." in text


READ = "{%- if add_generation_prompt %}{{ '<think></think>' if VARIABLE else '<think>' }}{%- endif %}"
SWITCHES = {
    "enable_thinking is defined and not enable_thinking": ({"enable_thinking": False}, {"enable_thinking": True}),
    "thinking is defined and thinking is false": ({"thinking": False}, {"thinking": True}),
    "not (reasoning is defined and reasoning)": ({"reasoning": False}, {"reasoning": True}),
    "thinking_mode == 'off' or thinking_mode != 'on'": ({"thinking_mode": "off"}, {"thinking_mode": "on"}),
    "thinking_mode in ['disabled']": ({}, {}),  # how it is turned on is not known
    "thinking_mode in ['disabled'] or thinking_mode != 'enabled'": (
        {"thinking_mode": "disabled"},
        {"thinking_mode": "enabled"},
    ),
    "thinking_budget == 0": ({"thinking_budget": 0}, {}),
    "(reasoning_effort | default('none')) == 'none' and 'high'": (
        {"reasoning_effort": "none"},
        {"reasoning_effort": "high"},
    ),
    "not reasoning_effort in ['high', 'low'] and 'no_think'": (
        {"reasoning_effort": "no_think"},
        {"reasoning_effort": "high"},
    ),
}


@pytest.mark.parametrize("condition", SWITCHES)
def test_switch_has_the_name_that_the_template_reads(condition: str) -> None:
    text = READ.replace("VARIABLE", condition)
    off, on = made(text, thinking=False), made(text, thinking="keep")
    assert (off.variables, on.variables) == SWITCHES[condition]
    assert (prompt(off) != prompt(on)) == (SWITCHES[condition] != ({}, {}))
    assert made(text).variables == off.variables


@pytest.mark.parametrize(
    ("variable", "keep"),
    [("preserve_thinking", True), ("keep_past_thinking", True), ("clear_thinking", False), ("drop_thinking", False)],
)
def test_kept_reasoning_stays_in_a_rendered_history(variable: str, keep: bool) -> None:
    text = f"{{{{ {variable} is defined and {variable} }}}}"
    assert made(text, thinking="keep").variables == {variable: keep}
    assert made(text, thinking="strip").variables == {variable: not keep}
    assert made(text, thinking=False).variables == {}


def test_a_value_that_the_template_refuses_is_not_passed() -> None:
    text = "{%- if enable_thinking is defined and not enable_thinking %}{{ raise_exception('always') }}{%- endif %}x"
    assert prompt(made(text, thinking=False)) == "x"


def test_variables_of_the_user_win_and_unread_ones_are_refused() -> None:
    text = "{{ reasoning_effort | default('medium') }} {{ 'on' if enable_thinking else 'off' }}"
    given = made(text, variables={"reasoning_effort": "low", "enable_thinking": True})
    assert prompt(given) == "low on"
    for name, value in (("effort", "low"), ("messages", []), ("enable_thinking", "no"), ("reasoning_effort", 0)):
        with pytest.raises(ConfigError, match=name):
            made(text + "{{ messages }}", variables={name: value})


@pytest.mark.parametrize(
    "text",
    [
        "{%- if messages %}{%- set reasoning_content = 'x' %}{%- endif %}{{ reasoning_content }}",
        template("qwen3"),
        "{%- macro m() %}{{ reasoning_content }}{%- endmacro %}{%- set reasoning_content = 'a' %}{{ m() }}",
    ],
)
def test_a_variable_that_the_template_assigns_itself_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="reasoning_content"):
        made(text, variables={"reasoning_content": "HELLO"})


@pytest.mark.parametrize(
    "default",
    [
        "{%- set style = style | default('plain') %}",
        "{%- if style is not defined %}{%- set style = 'plain' %}{%- endif %}",
        "{%- for style in [1] %}{%- endfor %}",
        "{%- if tools %}{%- set style = 'a' %}{%- elif style is not defined %}{%- set style = 'b' %}{%- endif %}",
    ],
)
def test_a_variable_with_a_default_of_its_own_is_the_users(default: str) -> None:
    assert prompt(made(default + "{{ style }}", variables={"style": "bold"})) == "bold"


ALWAYS = "{{ 'Reasoning: ' + (reasoning_effort | default('medium')) }}"
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "always thinks": (ALWAYS, {"thinking": False}, "thinking: false"),
    "never thinks": ("{{ messages[0].content }}", {"thinking": "keep"}, "thinking: keep"),
    "contradiction": (
        "{{ '<think>' if enable_thinking else '' }}",
        {"thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
        "enable_thinking",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_setting_that_the_template_cannot_obey_is_refused(case: str, tmp_path: Path) -> None:
    text, fields, subject = REFUSED[case]
    build(text).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=subject):
        open_tokenizer(config_of(**fields), str(tmp_path))


@pytest.mark.parametrize("fields", [{}, {"thinking": "keep"}, {"thinking": "strip"}])
def test_what_the_user_does_not_ask_for_is_not_refused(fields: dict[str, Any], tmp_path: Path) -> None:
    build(ALWAYS).save_pretrained(tmp_path)
    assert open_tokenizer(config_of(**fields), str(tmp_path)).chat_template.variables == {}


def test_thinking_false_is_refused_if_prompts_open_reasoning(tmp_path: Path) -> None:
    opens = "{%- if add_generation_prompt %}{{ '<think>\\n' }}{%- endif %}"
    build(template("qwen3_instruct_2507") + opens).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="thinking: false"):
        open_renderer(config_of(thinking=False), open_tokenizer(config_of(thinking=False), str(tmp_path)))
    assert open_renderer(config_of(), open_tokenizer(config_of(), str(tmp_path))).opens("user")


@pytest.mark.parametrize(
    "mistake", ["{% if %}", "{{ 'a' + 1 }}", "{{ 1 / 0 }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"]
)
def test_mistake_in_a_template_is_one_short_line(mistake: str) -> None:
    with pytest.raises(RenderError) as caught:
        Renderer(HFTokenizer(build(template("qwen3") + mistake)))
    assert "template" in str(caught.value)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_template_of_the_user_replaces_the_checkpoints(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_bytes(template("qwen3").encode())
    (tmp_path / "run.yaml").write_text(
        f"environments: {{a/b: {{}}}}\nchat_template: {file}\nchat_template_date: 2026-02-28\n"
        "chat_template_kwargs: {enable_thinking: true}\ntool_format: hermes\n"
    )
    config = load_config(tmp_path / "run.yaml")
    file.unlink()  # the text travels with the run, not the path
    travelled = decode_config(json.loads(json.dumps(config.public())), "orl_config")
    assert travelled == config
    build("").save_pretrained(tmp_path / "model")
    process = SharedState(travelled, str(tmp_path / "model"), "", 1)
    assert process.renderer.tool_format == "hermes"
    assert process.tokenizer.decode(process.renderer.open((USER,), ())).endswith("<|im_start|>assistant\n")
    with pytest.raises(RenderError, match="chat_template: FILE"):
        open_tokenizer(config_of(), str(tmp_path / "model"))


def test_stop_tokens_reach_the_renderer_and_turn_end_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    base = build(template("qwen3"))
    base.eos_token = "<|endoftext|>"
    base.save_pretrained(tmp_path)
    config = config_of(stop_tokens=["<|box_end|>"])
    tok = open_tokenizer(config, str(tmp_path))
    assert tok.added_tokens["<|box_end|>"] in open_renderer(config, tok).stop_ids
    assert [line for line in caplog.messages if "<|im_end|>" in line]


@pytest.mark.parametrize("file", ["nowhere.jinja", "plain.txt"])
def test_file_without_template_is_refused_at_load_time(file: str, tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("no template")
    (tmp_path / "run.yaml").write_text(f"environments: {{a/b: {{}}}}\nchat_template: {tmp_path / file}\n")
    with pytest.raises(ConfigError, match=r"\$\.chat_template"):
        load_config(tmp_path / "run.yaml")


@pytest.mark.parametrize("text", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"])
def test_template_stays_in_its_sandbox(text: str) -> None:
    template = ChatTemplate("{% if not tools %}" + text + "{% endif %}", special_tokens={})
    for _ in range(2):
        with pytest.raises(SecurityError):
            template.render([{"role": "user"}], tools=None, add_generation_prompt=False)

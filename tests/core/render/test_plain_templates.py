"""Chat templates that know no tools, taught a format: results are user messages in that format's wrapping."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.errors import RenderError
from orl_core.messages import Message, ToolCall, ToolSpec, text_message
from orl_core.render import Renderer
from orl_core.render.certify import attacks
from orl_core.render.controls import Controls
from orl_rollout.tokenizer.tokenizer import HFTokenizer

from tests.kit.plain_styles import STYLES, TEACHES, plain_renderer, plain_tokenizer
from tests.kit.tokenizers import build, template

SYSTEM = [name for name, style in STYLES.items() if style.system]
TOOLS = [ToolSpec(name="look", description="Look around.")]
RESPONSE = "<tool_response>\n{}\n</tool_response>"
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
LISTS_TOOLS = "{% for tool in tools or [] %}{{ tool.function.name }}: {{ tool.function.description }}\n{% endfor %}"


def results(*texts: str) -> tuple[Message, ...]:
    return tuple(text_message("tool", text, name="look") for text in texts)


def followed(name: str, messages: tuple[Message, ...], *added: str) -> str:
    """Return what follows an action that ended in its stop token."""
    tok = plain_tokenizer(name, *added)
    stop = tok.added_tokens[STYLES[name].stop]
    return tok.decode(plain_renderer(name, *added).extend((5, stop), messages, calls_before=0))


@pytest.mark.parametrize("name", STYLES)
def test_plain_style_is_certified_if_it_takes_a_system(name: str) -> None:
    if not STYLES[name].system:
        with pytest.raises(RenderError, match="system message"):
            plain_renderer(name)
        return
    certificate = plain_renderer(name).certificate
    assert certificate.passed
    assert certificate.user_turns
    assert certificate.calls_per_action is None
    assert any("<tool_response>" in note for note in certificate.notes)


@pytest.mark.parametrize("name", SYSTEM)
def test_appended_turns_are_the_templates_own_conversation(name: str) -> None:
    """The whole conversation, rendered at once with plain user messages, ends as the appended ids do."""
    tok, renderer = plain_tokenizer(name), plain_renderer(name)
    opening = renderer.open([text_message("user", "Look twice.")], TOOLS)
    said = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    action = (*tok.encode_joint(said), tok.added_tokens[STYLES[name].stop])
    assert renderer.parse(action, TOOLS).calls == (ToolCall(name="look"),)
    ids = [*opening, *action, *renderer.extend(action, results("Dark.", "Cold."), calls_before=0)]
    shown = tok.decode(ids)
    assert '"name": "look"' in tok.decode(opening)
    wrapped = "\n".join(map(RESPONSE.format, ("Dark.", "Cold.")))
    conversation = [
        {"role": "user", "content": "Look twice."},
        {"role": "assistant", "content": said},
        {"role": "user", "content": wrapped},
    ]
    whole = tok.apply_chat_template(conversation, tools=None, add_generation_prompt=True)
    assert shown.endswith(whole[whole.index(said) + len(said) :].lstrip(" "))


@pytest.mark.parametrize("name", ["chatml", "llama2"])
def test_text_of_results_brings_no_control_ids(name: str) -> None:
    tok, renderer = plain_tokenizer(name, *TAGS), plain_renderer(name, *TAGS)

    def controls(text: str) -> list[int]:
        messages = (*results(text, text), text_message("user", text))
        ids = renderer.extend((), messages, calls_before=0)
        return [token for token in ids if token in tok.added_tokens.values()]

    blank = controls("x")
    assert [tok.decode([token]) for token in blank].count("<tool_response>") == 2
    for attack in attacks(Controls(tok)):
        assert controls(attack) == blank


@given(
    texts=st.lists(st.text(max_size=8), min_size=1, max_size=3),
    nudge=st.none() | st.text(alphabet="a \n", max_size=4),
    name=st.sampled_from(SYSTEM),
)
def test_extension_is_the_wrapped_text_in_the_template(texts: list[str], nudge: str | None, name: str) -> None:
    tok = plain_tokenizer(name)
    messages = results(*texts) + (() if nudge is None else (text_message("user", nudge),))
    content = "\n".join([*map(RESPONSE.format, texts), *([] if nudge is None else [nudge])])
    history = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Zq"}]
    whole = tok.apply_chat_template(
        [*history, {"role": "user", "content": content}], tools=None, add_generation_prompt=True
    )
    tail = whole[whole.index(STYLES[name].stop, whole.index("Zq")) :]
    assert tok.decode(plain_renderer(name).extend((), messages, calls_before=0)) == tail


def test_result_in_first_messages_is_a_user_message() -> None:
    first = (text_message("user", "Look."), text_message("assistant", "Well."), *results("Dark."))
    ids = plain_renderer("chatml").open(first, TOOLS)
    assert plain_tokenizer("chatml").decode(ids).endswith(STYLES["chatml"].follows.format(RESPONSE.format("Dark.")))


def changed(old: str, new: str) -> HFTokenizer:
    source = template("plain/chatml")
    assert old in source
    return HFTokenizer(build(source.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{{ '<|im_start|>' + message['role']", "{{ '<|im_start|>' + message['role'].replace('tool', 'observation')"),
        ("{% for message", LISTS_TOOLS + "{% for message"),
        ("message['content']", "message['content'] + (message.tool_calls | tojson if message.tool_calls else '')"),
    ],
    ids=["names the role", "shows tools", "writes calls"],
)
def test_template_that_knows_tools_keeps_its_own_role(old: str, new: str) -> None:
    tok = changed(old, new)
    renderer = Renderer(tok, system_prompt_template=TEACHES)
    shown = tok.decode(renderer.extend((), results("Dark.", "Cold."), calls_before=0))
    assert "Dark." in shown
    assert "<tool_response>" not in shown


def test_several_results_follow_if_the_first_form_fits() -> None:
    renderer = Renderer(changed("{% for message", LISTS_TOOLS + "{% for message"), tool_format="hermes")
    assert renderer.certificate.calls_per_action is None
    assert not renderer.certificate.passed  # the template writes no calls


def test_unknown_tool_format_is_refused_by_name() -> None:
    with pytest.raises(RenderError, match="`morse`"):
        Renderer(plain_tokenizer("chatml"), tool_format="morse")  # type: ignore[arg-type]


def test_template_that_drops_the_system_prompt_is_refused() -> None:
    tok = changed("{% for message in messages %}", "{% for message in messages if message.role != 'system' %}")
    with pytest.raises(RenderError, match="drops the system message"):
        Renderer(tok, system_prompt_template=TEACHES)

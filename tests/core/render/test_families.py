"""Every supported family: its certificate, its golden texts, extensions equal to the template's own, law L4."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core.errors import RenderError
from orl_core.messages import Message, Role, ToolCall, ToolSpec, text_message
from orl_core.render import Renderer
from orl_core.render.certify import Extent, unlike_template
from orl_core.render.controls import Controls
from orl_core.render.conversation import Dialect, for_template
from orl_core.render.dummy import Roles
from orl_core.render.independence import TemplateLimits
from orl_core.render.plan import Plans, TailPlan
from orl_rollout.tokenizer.tokenizer import HFTokenizer

from tests.core.render.conversations import few, harmless, hostile_to, rounds
from tests.kit.families import FAMILIES, renderer, rows, tokenizer
from tests.kit.tokenizers import build, template

GOLDEN = Path(__file__).parents[2] / "golden"
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"who": {"type": "string", "description": "a <name>"}}}
TOOLS = (ToolSpec(name="accuse", description="Name the culprit.", parameters=SCHEMA), ToolSpec(name="look"))
USER = text_message("user", "Who did it?")
KNIFE, ALIBI = text_message("tool", "A knife.\n", name="look"), text_message("tool", '{"alibi": null}', name="ask")
every_family = pytest.mark.parametrize("name", rows())


def dialect(name: str) -> Dialect:
    wire = FAMILIES[name].tool_format
    return Dialect(arguments_as_text=wire == "deepseek", named_ids=wire == "kimi_k2")


def whole(name: str, messages: Sequence[Message], *, prompt: bool = True) -> str:
    """The template's own rendering of a conversation."""
    dicts = for_template(messages, str, dialect(name))
    return tokenizer(name).apply_chat_template(dicts, tools=None, add_generation_prompt=prompt)


def controls(name: str, ids: Sequence[int]) -> list[int]:
    known = set(tokenizer(name).added_tokens.values())
    return [token for token in ids if token in known]


def played(data: st.DataObject, name: str) -> list[tuple[Message, tuple[Message, ...]]]:
    """Rounds that the family's template can express."""
    family = FAMILIES[name]
    one = rounds(most=family.calls_per_action or 3, user=family.user_turns, both=False, text=family.text_with_calls)
    return data.draw(st.lists(one, min_size=1, max_size=4))


@every_family
def test_certificate_passes_and_lists_template_abilities(name: str) -> None:
    family, made = FAMILIES[name], renderer(name)
    certificate = made.certificate
    assert certificate.passed
    assert (certificate.user_turns, certificate.calls_per_action) == (family.user_turns, family.calls_per_action)
    assert made.tool_format == family.tool_format


@every_family
def test_golden_opening_and_extensions(name: str) -> None:
    """The family's wire format, as text, in tests/golden; the ids are those of its joint encoding."""
    family, tok, made = FAMILIES[name], tokenizer(name), renderer(name)
    shown = {
        "open": made.open((text_message("system", "Be brief."), USER), TOOLS),
        "open without tools": made.open((USER,), ()),
        "result": made.extend((), (KNIFE,), calls_before=0),
        "result after two calls": made.extend((), (KNIFE,), calls_before=2),
    }
    if family.calls_per_action is None:
        shown["two results"] = made.extend((), (KNIFE, ALIBI), calls_before=0)
    if family.user_turns:
        shown["user"] = made.extend((), (USER,), calls_before=0)
    texts = {what: tok.decode(ids) for what, ids in shown.items()}
    for what, ids in shown.items():
        assert list(ids) == tok.encode_joint(texts[what])
    now = datetime.now().astimezone()
    dated = json.dumps(texts, ensure_ascii=False, indent=2)
    for form in ("%Y-%m-%d", "%d %b %Y"):
        dated = dated.replace(now.strftime(form), form)
    assert json.loads(dated) == json.loads((GOLDEN / f"render_{name}.json").read_text(encoding="utf-8"))


@every_family
@given(data=st.data(), first=harmless)
@few
def test_extensions_end_the_full_rendering(name: str, data: st.DataObject, first: str) -> None:
    """Appended ids are those that the template prints at the end of the whole conversation, id by id."""
    made, tok = renderer(name), tokenizer(name)
    history, before = [text_message("user", first)], 0
    for action, answers in played(data, name):
        history += [action, *answers]
        ids = made.extend((), answers, calls_before=before)
        before += len(action.calls)
        full = tok.encode_joint(whole(name, history))
        assert full[-len(ids) :] == list(ids)


@pytest.mark.parametrize("name", rows(name for name, family in FAMILIES.items() if family.append_only))
@given(data=st.data(), first=harmless)
@few
def test_appended_conversation_equals_the_whole_one(name: str, data: st.DataObject, first: str) -> None:
    """Every id of opening, actions and extensions can be compared if the template keeps history."""
    made, tok = renderer(name), tokenizer(name)
    history, before = [text_message("user", first)], 0
    ids = tok.encode_joint(whole(name, history))
    if FAMILIES[name].shows_tools:
        assert list(made.open(tuple(history), ())) == ids
    for action, answers in played(data, name):
        said = whole(name, [*history, action], prompt=False).removeprefix(whole(name, history))
        end = tok.decode([made.stop_ids[0]])
        closed, stop, _ = said.rpartition(end)  # GLM closes an action with what comes next
        action_ids = tok.encode_joint(closed + stop if stop else said)
        ids += [*action_ids, *made.extend(action_ids, answers, calls_before=before)]
        history += [action, *answers]
        before += len(action.calls)
    assert ids == tok.encode_joint(whole(name, history))


class _Broken(Plans):
    """Plans that lose the last id before the first slot, or the text that it stands for."""

    def __init__(self, name: str, *, text: bool) -> None:
        super().__init__(tokenizer(name), Controls(tokenizer(name)))
        self._text = text

    def plan(self, roles: Roles, calls_before: int = 0) -> TailPlan:
        plan = super().plan(roles, calls_before)
        if self._text:
            return structs.replace(plan, parts=(str(plan.parts[0])[1:], "|", *plan.parts[1:]))
        return structs.replace(plan, fixed=(plan.fixed[0][:-1], *plan.fixed[1:]))


@every_family
def test_negative_control_a_plan_that_differs_is_found(name: str) -> None:
    family, plans = FAMILIES[name], Plans(tokenizer(name), Controls(tokenizer(name)))
    plans.counting = name == "deepseek_v3"
    plans.find_count()
    roles: Roles = ("tool", "user") if family.user_turns else ("tool",)
    closing: dict[Role, int] = {role: plans.plan((role,)).closing for role in roles}
    openings: TemplateLimits = {"apart": ""} if name == "gpt_oss" else {}
    openings |= {} if family.text_with_calls else {"moved": ""}
    extent = Extent(closing=closing, calls_per_action=family.calls_per_action, openings=openings)
    assert unlike_template(plans, extent, dialect(name)) == ""
    for text, complaint in ((True, "does not end in"), (False, "is not encoded jointly")):
        broken = _Broken(name, text=text)
        broken.counting, broken.count = plans.counting, plans.count
        assert complaint in unlike_template(broken, extent, dialect(name))


def opening(texts: Sequence[str]) -> tuple[tuple[Message, ...], tuple[ToolSpec, ...]]:
    """A system message, a user message and a tool, made of four texts from outside."""
    system, user, description, value = texts
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {"where": {"type": "string", "description": value, "enum": [value]}},
    }
    tool = ToolSpec(name="look", description=description, parameters=parameters)
    return (text_message("system", system), text_message("user", user)), (tool,)


@every_family
@given(data=st.data())
@few
def test_l4_no_text_from_outside_brings_a_control_id(name: str, data: st.DataObject) -> None:
    made, hostile = renderer(name), hostile_to(list(tokenizer(name).added_tokens))
    # Gemma 4's template leaves out an empty description with its quotes, which are control ids.
    texts = data.draw(st.lists(hostile.filter(bool) if name.startswith("gemma4") else hostile, min_size=4, max_size=4))
    blank = made.open(*opening(["x"] * 4))
    assert controls(name, made.open(*opening(texts))) == controls(name, blank)
    number = FAMILIES[name].calls_per_action or 2
    results = tuple(text_message("tool", text, name=texts[0]) for text in texts[:number])
    plain = tuple(text_message("tool", "x", name="x") for _ in results)
    ids = made.extend((), results, calls_before=1)
    assert controls(name, ids) == controls(name, made.extend((), plain, calls_before=1))
    if FAMILIES[name].user_turns:
        ids = made.extend((), (text_message("user", texts[0]),), calls_before=1)
        assert controls(name, ids) == controls(name, made.extend((), (text_message("user", "x"),), calls_before=1))


@every_family
def test_l4_negative_control_joint_encoding_forges_all(name: str) -> None:
    tok = tokenizer(name)
    for text in tok.added_tokens:
        attacked = text_message("user", f"a{text}b")
        forged = controls(name, tok.encode_joint(whole(name, [attacked])))
        assert forged != controls(name, tok.encode_joint(whole(name, [USER])))


@pytest.mark.published
def test_unfit_role_opener_is_refused_and_never_dropped() -> None:
    made, ids = renderer("glm4_5"), tokenizer("glm4_5").added_tokens
    observation, user = ids["<|observation|>"], ids["<|user|>"]
    assert made.stop_ids == (observation, user, ids["<|endoftext|>"])
    result, asked = made.extend((7,), (KNIFE,), calls_before=0), made.extend((7,), (USER,), calls_before=0)
    assert (result[0], asked[0]) == (observation, user)
    assert made.extend((7, observation), (KNIFE,), calls_before=0) == result[1:]
    assert made.extend((7, user), (USER,), calls_before=0) == asked[1:]
    assert made.extend((7, ids["<|endoftext|>"]), (KNIFE,), calls_before=0) == result
    for stop, message in ((user, KNIFE), (observation, USER)):
        assert not made.can_follow((7, stop), (message,))
        with pytest.raises(RenderError, match=rf"ended in token {stop}, which a {message.role} message cannot follow"):
            made.extend((7, stop), (message,), calls_before=0)


@pytest.mark.published
def test_equivalent_stop_is_kept_and_template_stop_is_dropped() -> None:
    made, ids = renderer("llama3_1"), tokenizer("llama3_1").added_tokens
    rest = made.extend((7,), (KNIFE,), calls_before=0)[1:]
    assert made.extend((7, ids["<|eom_id|>"]), (KNIFE,), calls_before=0) == rest
    assert made.extend((7, ids["<|eot_id|>"]), (KNIFE,), calls_before=0) == rest
    assert made.extend((7, ids["<|end_of_text|>"]), (KNIFE,), calls_before=0) == (ids["<|eot_id|>"], *rest)


@pytest.mark.published
def test_an_answer_and_a_call_of_gpt_oss_end_differently() -> None:
    made, ids = renderer("gpt_oss"), tokenizer("gpt_oss").added_tokens
    # <|end|> separates the reasoning from the call: an engine that stopped there would never see one.
    assert made.stop_ids == (ids["<|call|>"], ids["<|return|>"], ids["<|endoftext|>"])
    asked = made.extend((7,), (USER,), calls_before=0)
    assert asked[0] == ids["<|end|>"]
    assert made.extend((7, ids["<|return|>"]), (USER,), calls_before=0) == asked[1:]
    assert not made.can_follow((7, ids["<|return|>"]), (KNIFE,))
    assert not made.can_follow((7, ids["<|call|>"]), (USER,))


def test_call_ids_are_made_from_the_number_of_calls_before() -> None:
    shown = tokenizer("kimi_k2").decode(renderer("kimi_k2").extend((), (KNIFE, ALIBI), calls_before=3))
    assert "## Return of functions.look:3\nA knife.\n" in shown
    assert "## Return of functions.ask:4\n" in shown
    shown = tokenizer("mistral_nemo").decode(renderer("mistral_nemo").extend((), (KNIFE, ALIBI), calls_before=3))
    assert '"call_id": "c00000003"}' in shown
    assert '"call_id": "c00000004"}' in shown


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("kimi_k2", ["## Return of a:7\n", "## Return of functions.ask:4\n"]),
        ("mistral_small_3_2", ["[TOOL_RESULTS]a:7[TOOL_CONTENT]", "[TOOL_RESULTS]c00000004[TOOL_CONTENT]"]),
        ("command_r7b", ['"tool_call_id": "a:7"', '"tool_call_id": "4"']),
    ],
)
def test_result_shows_the_sampled_id_or_else_a_number(name: str, shown: list[str]) -> None:
    ids = renderer(name).extend((), (structs.replace(KNIFE, id="a:7"), ALIBI), calls_before=3)
    assert [text in tokenizer(name).decode(ids) for text in shown] == [True, True]


@pytest.mark.parametrize("name", ["kimi_k2", "mistral_nemo", "command_r7b"])
def test_call_id_brings_no_control_id(name: str) -> None:
    """Law L4: an id is a text of the model's."""
    spelled = structs.replace(KNIFE, id="".join(tokenizer(name).added_tokens))
    ids = renderer(name).extend((), (spelled,), calls_before=0)
    assert controls(name, ids) == controls(name, renderer(name).extend((), (KNIFE,), calls_before=0))


def numbering(number: str) -> HFTokenizer:
    """A template like Kimi K2's that makes the ids of calls itself, with this number."""
    vocabulary = FAMILIES["kimi_k2"].vocabulary
    hf = build(
        template("kimi_k2").replace("+ call.id +", f"~ 'functions.' ~ call.function.name ~ ':' ~ {number} ~"),
        vocabulary=vocabulary,
    )
    return HFTokenizer(hf, stop_ids=[hf.get_vocab()[text] for text in vocabulary.stops])


def test_template_with_ids_of_its_own_shows_them_with_results() -> None:
    """As the first template of Kimi K2, which numbers the calls of each action from 0."""
    tok = numbering("loop.index0")
    made = Renderer(tok)
    twice = [Message(role="assistant", calls=(ToolCall(name="look"),)), KNIFE] * 2
    shown = tok.decode(made.open((USER, *twice), TOOLS))
    assert shown.count("functions.look:0<|tool_call_argument_begin|>") == 2
    assert shown.count("## Return of functions.look:0\n") == 2
    assert "## Return of functions.look:0\n" in tok.decode(made.extend((), (KNIFE,), calls_before=2))


def test_template_with_other_ids_of_results_is_refused() -> None:
    with pytest.raises(RenderError, match=r"has the ids \['functions.look:1'\], its results show"):
        Renderer(numbering("loop.index"))


@pytest.mark.published
def test_template_that_counts_calls_has_a_plan_for_any_number() -> None:
    """DeepSeek V3's template opens the list of results once in a conversation."""
    made, ids = renderer("deepseek_v3"), tokenizer("deepseek_v3").added_tokens
    opener = ids["<｜tool▁outputs▁begin｜>"]
    assert opener in made.extend((), (KNIFE,), calls_before=0)
    assert opener not in made.extend((), (KNIFE,), calls_before=1)
    assert "depends on the number of calls before" in str(made.certificate.checks)


def test_what_a_template_cannot_express_is_refused() -> None:
    with pytest.raises(RenderError, match="an action is followed by tool messages, not by user"):
        renderer("mistral_nemo").extend((), (USER,), calls_before=0)
    for ids in ((), (7,), renderer("mistral_nemo").stop_ids):
        assert not renderer("mistral_nemo").can_follow(ids, (USER,))
        assert renderer("mistral_nemo").can_follow(ids, (KNIFE,))
    (note,) = [note for note in renderer("mistral_nemo").certificate.notes if "user message" in note]
    assert "check 8" in note


@pytest.mark.published
def test_second_result_is_refused_if_template_writes_one_call() -> None:
    with pytest.raises(RenderError, match=r"cannot follow an action with tool, tool: .* single tool-calls"):
        renderer("llama3_1").extend((), (KNIFE, ALIBI), calls_before=0)


def test_a_prompt_may_open_reasoning_after_a_user_message_only() -> None:
    made, tok = renderer("deepseek_v3_1_think"), tokenizer("deepseek_v3_1_think")
    said = tok.encode_joint("Hm.</think>Yes.")
    assert made.parse(said).reasoning == "Hm."
    assert made.parse(said, after="tool").reasoning == ""


@pytest.mark.parametrize(
    ("name", "opening", "said"),
    [
        ("ministral_3", "[THINK]", "Hm.[/THINK]Yes."),
        pytest.param(
            *("gpt_oss", "<|channel|>analysis<|message|>"),
            "Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
            marks=pytest.mark.published,
        ),
        ("qwen3_coder", "<think>", "Hm.</think>Yes."),
    ],
)
def test_prompt_that_opens_reasoning_is_seen_with_any_tags(name: str, opening: str, said: str) -> None:
    family = FAMILIES[name]
    prompt = "{%- if add_generation_prompt %}{{- '" + opening + "' }}{%- endif %}"
    hf = build(template(family.template) + prompt, vocabulary=family.vocabulary)
    ids = hf.get_vocab()
    tok = HFTokenizer(hf, thinking=True, stop_ids=[ids[text] for text in family.vocabulary.stops])
    made = Renderer(tok)
    action = made.parse(tok.encode_joint(said))
    assert (action.reasoning, action.text) == ("Hm.", "Yes.")
    assert renderer(name).parse(tok.encode_joint(said)).reasoning == ""
    assert "inside reasoning" in made.certificate.notes[0]
    if made.strips:  # where the opening is one control id
        observation, action_ids = made.open((USER,), ()), tok.encode_joint(said)
        ((start, end),) = made.hide(observation, action_ids, made.read(action_ids)[1])
        assert tok.decode([*observation, *action_ids][start:end]) == opening + said.removesuffix("Yes.")
    assert made.strips == (name != "gpt_oss")

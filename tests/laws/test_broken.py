"""Broken on purpose: a renderer, a mask or an engine's client with one fault makes the check of its law fail.

Each law is run here as a property over the same texts, token streams and trajectories for the sound part and for every
mutant of it. A mutant that passed would show that the law is not looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec import structs
from orl_core.datum import Datum, to_data
from orl_core.limits import Limits
from orl_core.messages import Message, ToolResult, text_message
from orl_core.trajectory import Generation, Trajectory
from orl_testing import ScriptedEngine, ScriptedSession

from tests.core.render.conversations import harmless, hostile
from tests.kit.quick import every_fifth
from tests.kit.strategies import masked_trajectories, stripped_trajectories
from tests.kit.tokenizers import renderer_of, tokenizer
from tests.laws.checks import Extend, check_appended, check_data, check_shown, check_text
from tests.laws.plays import play

Settings = Callable[[Callable[..., None]], Callable[..., None]]
TOKENIZER = tokenizer("qwen3")
RENDERER = renderer_of()
CONTROLS = frozenset(TOKENIZER.added_tokens.values())
END = TOKENIZER.added_tokens["<|im_end|>"]
any_ids = st.lists(st.integers(0, max(CONTROLS)), max_size=8)
streams = st.tuples(any_ids, st.sampled_from([(), (END,)])).map(lambda parts: (*parts[0], *parts[1]))


def messages_of(texts: st.SearchStrategy[str]) -> st.SearchStrategy[list[Message]]:
    results = st.lists(texts.map(lambda text: text_message("tool", text, name="look")), min_size=1, max_size=2)
    return results | texts.map(lambda text: [text_message("user", text)])


def broken(law: Callable[..., None]) -> Callable[..., None]:
    """Settings under which a mutant has to fail: always the same examples, none made small, many more than usual."""
    phases = (Phase.explicit, Phase.generate)
    return settings(phases=phases, database=None, report_multiple_bugs=False, derandomize=True, max_examples=6_000)(law)


def usual(law: Callable[..., None]) -> Callable[..., None]:
    """As many examples as the profile says."""
    return law


def law_of_appending(extend: Extend, by: Settings) -> None:
    """L5: the template's own tail after any ids."""

    @by
    @given(action_ids=streams, messages=messages_of(harmless))
    def appends(action_ids: tuple[int, ...], messages: list[Message]) -> None:
        history: list[dict[str, Any]] = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Zqsaid"}]
        history += [{"role": message.role, "content": message.content[0].text} for message in messages]  # type: ignore[union-attr]
        whole = TOKENIZER.apply_chat_template(history, tools=None, add_generation_prompt=True)
        check_appended(extend, action_ids, messages, TOKENIZER.encode_joint(whole.partition("Zqsaid")[2]))

    appends()


def law_of_text(extend: Extend, by: Settings) -> None:
    """L4: text from outside is text."""

    @by
    @given(action_ids=streams, messages=messages_of(hostile))
    def keeps_text(action_ids: tuple[int, ...], messages: list[Message]) -> None:
        check_text(extend, TOKENIZER.decode, CONTROLS, action_ids, messages)

    keeps_text()


def sound(action_ids: Sequence[int], messages: Sequence[Message]) -> Sequence[int]:
    return RENDERER.extend(action_ids, messages, calls_before=0)


def retokenizes(action_ids: Sequence[int], messages: Sequence[Message]) -> Sequence[int]:
    """Renders action and answer as one text, and takes off as many ids as the action had."""
    said = TOKENIZER.decode([*action_ids, *sound(action_ids, messages)])
    return TOKENIZER.encode_joint(said)[len(action_ids) :]


RENDERERS: dict[str, Extend] = {
    "re-tokenizes the action": retokenizes,
    "says the action again": lambda ids, messages: (*ids, *sound(ids, messages)),
    "drops an id": lambda ids, messages: (*sound(ids, messages)[:3], *sound(ids, messages)[4:]),
    "drops the last id": lambda ids, messages: sound(ids, messages)[:-1],
    "begins its tail one id late": lambda ids, messages: sound(ids, messages)[1:],
    "closes what is closed": lambda _, messages: sound((), messages),
    "never closes": lambda _, messages: sound((END,), messages),
    "forgets the second message": lambda ids, messages: sound(ids, messages[:1]),
}
TEXT_RENDERERS: dict[str, Extend] = {
    "encodes with the added tokens": lambda ids, messages: TOKENIZER.encode_joint(
        TOKENIZER.decode(sound(ids, messages))
    ),
    "leaves control strings out": lambda ids, messages: sound(
        ids,
        [text_message(m.role, m.content[0].text.replace("<|im_end|>", "")) for m in messages],  # type: ignore[union-attr]
    ),
}


def test_the_renderer_keeps_its_laws() -> None:
    law_of_appending(sound, usual)
    law_of_text(sound, usual)


@pytest.mark.parametrize("name", RENDERERS)
def test_a_broken_renderer_is_found(name: str) -> None:
    with pytest.raises(AssertionError):
        law_of_appending(RENDERERS[name], broken)


@pytest.mark.parametrize("name", TEXT_RENDERERS)
def test_a_renderer_that_lets_control_ids_in_is_found(name: str) -> None:
    with pytest.raises(AssertionError):
        law_of_text(TEXT_RENDERERS[name], broken)


Convert = Callable[[Trajectory], tuple[Datum, ...]]


def law_of_data(convert: Convert, by: Settings) -> None:
    """L1: what trains is what was sampled, masked as the policy says."""

    @by
    @given(trajectory=masked_trajectories | stripped_trajectories)
    def holds(trajectory: Trajectory) -> None:
        check_data(trajectory, convert(trajectory))

    holds()


def convert(trajectory: Trajectory) -> tuple[Datum, ...]:
    return to_data(trajectory, reward=0.5)


def each(change: Callable[[Datum], dict[str, Any]]) -> Convert:
    """A conversion whose data have some columns changed."""
    return lambda trajectory: tuple(structs.replace(datum, **change(datum)) for datum in convert(trajectory))


def later(column: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*column[-1:], *column[:-1])


def swapped(column: tuple[float, ...]) -> tuple[float, ...]:
    """Two neighbours that differ, exchanged."""
    at = next((index for index, pair in enumerate(itertools.pairwise(column)) if pair[0] != pair[1]), None)
    return column if at is None else (*column[:at], column[at + 1], column[at], *column[at + 2 :])


def moved_spans(trajectory: Trajectory) -> tuple[Datum, ...]:
    """The parts of an action begin and end one id late."""

    def moved(turn: Any) -> Any:
        spans = [structs.replace(span, start=span.start + 1, end=span.end + 1) for span in turn.spans or ()]
        return structs.replace(turn, spans=tuple(spans) if turn.spans is not None else None)

    return convert(structs.replace(trajectory, turns=tuple(map(moved, trajectory.turns))))


MASKS: dict[str, Convert] = {
    "a mask one id late": each(lambda datum: {"loss_mask": later(datum.loss_mask)}),
    "sampled one id late": each(lambda datum: {"sampled": later(datum.sampled)}),
    "trains what was shown": each(lambda datum: {"loss_mask": (int(datum.trainable),) * len(datum.loss_mask)}),
    "trains what does not train": each(lambda datum: {"loss_mask": datum.sampled}),
    "trains nothing": each(lambda datum: {"loss_mask": (0,) * len(datum.loss_mask)}),
    "says that all was sampled": each(lambda datum: {"sampled": (1,) * len(datum.sampled)}),
    "swaps two logprobs": each(lambda datum: {"logprobs": swapped(datum.logprobs)}),
    "logprobs one id late": each(lambda datum: {"logprobs": later(datum.logprobs)}),
    "loses the last id": each(
        lambda datum: {name: getattr(datum, name)[:-1] for name in ("response", "sampled", "loss_mask", "logprobs")}
    ),
    "pads the end": each(
        lambda datum: {name: (*getattr(datum, name), 0) for name in ("response", "sampled", "loss_mask", "logprobs")}
    ),
    "one id for another": each(lambda datum: {"response": (datum.response[0] + 1, *datum.response[1:])}),
    "a prompt without its first id": each(lambda datum: {"prompt": datum.prompt[1:]}),
    "parts one id late": moved_spans,
    "forgets what was hidden": lambda trajectory: convert(
        structs.replace(trajectory, turns=tuple(structs.replace(turn, stripped_spans=()) for turn in trajectory.turns))
    ),
    "loses the last datum": lambda trajectory: convert(trajectory)[:-1],
    "trains refused turns": lambda trajectory: convert(
        structs.replace(trajectory, turns=tuple(structs.replace(turn, results=()) for turn in trajectory.turns))
    ),
}


def test_the_mask_keeps_its_law() -> None:
    law_of_data(convert, usual)


@pytest.mark.parametrize("name", every_fifth(MASKS))
def test_a_broken_mask_is_found(name: str) -> None:
    with pytest.raises(AssertionError):
        law_of_data(MASKS[name], broken)


class _Retokenizing(ScriptedEngine):
    """An engine behind a client that sends text: what it is shown is the context, decoded and encoded again."""

    async def generate(self, ids: Sequence[int], sampling: Any, *, key: str) -> Generation:
        return await super().generate(TOKENIZER.encode_joint(TOKENIZER.decode(ids)), sampling, key=key)


def law_of_the_wire(client: type[ScriptedEngine], by: Settings) -> None:
    """L1 at the engine: what it was shown and what it returned is what the data hold, whatever ids it returned."""

    @by
    @given(streams=st.lists(any_ids, min_size=2, max_size=3))
    def holds(streams: list[list[int]]) -> None:
        call = TOKENIZER.encode_joint('<tool_call>\n{"name": "act", "arguments": {}}\n</tool_call><|im_end|>')
        script = [
            Generation(token_ids=(*ids, *call), logprobs=(-0.5,) * (len(ids) + len(call)), finish_reason="stop")
            for ids in streams
        ]
        engine = client(script)
        session = ScriptedSession([ToolResult(name="act")] * len(script))
        trajectory = play(engine, session, Limits(max_turns=len(script)), lambda: False)
        answered = [(request.token_ids, request.generation) for request in engine.requests]
        check_shown(answered, to_data(trajectory, reward=0.0))

    holds()


def test_the_loop_shows_the_engine_its_own_ids() -> None:
    law_of_the_wire(ScriptedEngine, usual)


def test_a_client_that_encodes_history_again_is_found() -> None:
    with pytest.raises(AssertionError):
        law_of_the_wire(_Retokenizing, broken)

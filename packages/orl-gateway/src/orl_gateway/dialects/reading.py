"""Shared by the readers: the fields of a body, the parts of a content, and a conversation in the form of ModelRequest.

What cannot be obeyed is refused. Sampling belongs to the trainer: a client's own values are read and give way to the
trainer's, because a sampled id's logprob must be that of the policy that is trained.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct, structs
from orl_core.errors import boundary
from orl_core.messages import Message, TextBlock, ToolCall

from orl_gateway.dialects.exchange import RequestRefused

T = TypeVar("T", bound=Struct)

CACHED_CHARACTERS = 2_000  # of arguments that are kept parsed
TRAINERS_FIELDS = frozenset(
    (
        *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"),
        *("repetition_penalty", "reasoning_effort", "reasoning", "thinking", "chat_template_kwargs", "verbosity"),
    )
)
BOOKKEEPING_FIELDS = frozenset(
    (
        *("user", "metadata", "client_metadata", "store", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "cache_control"),
    )
)
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text"})
_IMAGE_PARTS = frozenset({"image", "image_url", "input_image", "computer_screenshot"})


def read_body(body: bytes, form: type[T], *, taken: Iterable[str] = ()) -> T:
    """Return a request's JSON as `form`. Null is the same as no value.

    Fields of `form`, TRAINERS_FIELDS, BOOKKEEPING_FIELDS and those of `taken` are known.

    Raises:
        RequestRefused: the body is no JSON object, a field has the wrong type, or it is none that can be obeyed.
    """
    with boundary(RequestRefused, "reading the request"):
        tree = msgspec.json.decode(body, type=dict[str, Any])
        given = {name: value for name, value in tree.items() if value is not None}
        known = {*structs_fields(form), *TRAINERS_FIELDS, *BOOKKEEPING_FIELDS, *taken}
        if unknown := sorted(given.keys() - known):
            raise unsupported(f"the field `{unknown[0]}`")
        return msgspec.convert({name: given[name] for name in given.keys() & structs_fields(form)}, form)


def structs_fields(form: type[Struct]) -> set[str]:
    """Return the names that the fields of `form` have on the wire."""
    return {one.encode_name for one in structs.fields(form)}


def unsupported(what: str) -> RequestRefused:
    """Return the refusal of a part of a request that the gateway cannot obey."""
    return RequestRefused(f"{what} is not supported by this gateway: leave it out", code="unsupported")


def text_blocks(content: object, where: str) -> tuple[TextBlock, ...]:
    """Return the text of a content: a string, or a list of parts. `where` is named in the refusal.

    Raises:
        RequestRefused: it holds an image or another part that is no text.
    """
    if content is None:
        return ()
    if isinstance(content, str):
        return (TextBlock(text=content),) if content else ()
    if not isinstance(content, list):
        raise RequestRefused(f"{where}: the content is neither a text nor a list of parts")
    return tuple(TextBlock(text=_text_of(part, where)) for part in cast("list[object]", content))


def _text_of(part: object, where: str) -> str:
    fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {"type": "text", "text": part}
    kind = fields.get("type", "text")
    if kind in _IMAGE_PARTS:
        raise unsupported(f"{where}: an image (`{kind}`)")
    text = fields.get("refusal" if kind == "refusal" else "text")
    if kind not in _TEXT_PARTS or not isinstance(text, str):
        raise unsupported(f"{where}: a part of type `{kind}` that is no text")
    return text


def arguments_of(text: object, name: str) -> dict[str, Any]:
    """Return the arguments of a call in a request: an object, or its JSON. An empty text is no arguments.

    Raises:
        RequestRefused: it is no JSON object.
    """
    if isinstance(text, dict):
        return cast("dict[str, Any]", text)
    if isinstance(text, str):
        try:
            tree = _parsed(text) if len(text) <= CACHED_CHARACTERS else json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise RequestRefused(f"the arguments of the call of `{name}` are no JSON: {exc}") from exc
        if isinstance(tree, dict):
            return cast("dict[str, Any]", tree)
    raise RequestRefused(f"the arguments of the call of `{name}` are no JSON object")


@lru_cache(maxsize=4096)
def _parsed(text: str) -> object:
    """Return the value of a short JSON text, parsed once: a client sends its whole history with each request."""
    return json.loads(text) if text.strip() else {}


class Conversation:
    """Collects the messages of a request in the form of ModelRequest.

    System messages at the beginning become one; a later one is shown as a user's, because chat templates have no place
    for it. User messages in a row become one, and so do assistant messages: an action is whole.
    """

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._call_ids: list[tuple[str, ...]] = []
        self._places: dict[str, tuple[int, str]] = {}  # order of a call among all calls, and its tool, by its id
        self._answers: list[int] = []  # order of the call that each message answers, -1 where it answers none

    def system(self, blocks: Sequence[TextBlock]) -> None:
        """Add a system or developer message."""
        if all(message.role == "system" for message in self._messages):
            text = "\n\n".join(block.text for block in blocks)
            self._join(Message(role="system", content=(TextBlock(text=text),) if text else ()), "\n\n")
        else:
            self.user(blocks)

    def user(self, blocks: Sequence[TextBlock]) -> None:
        """Add a user message."""
        self._join(Message(role="user", content=tuple(blocks)), "\n")

    def assistant(
        self,
        blocks: Sequence[TextBlock] = (),
        *,
        reasoning: str = "",
        calls: Sequence[tuple[str, str, dict[str, Any]]] = (),
    ) -> None:
        """Add what the model said. A call is its id, the tool's name and its arguments.

        Raises:
            RequestRefused: two calls have one id.
        """
        for id_, name, _ in calls:
            if id_ in self._places:
                raise RequestRefused(f"two calls of the conversation have the id `{id_}`")
            self._places[id_] = len(self._places), name
        made = tuple(ToolCall(name=name, arguments=arguments) for _, name, arguments in calls)
        said = Message(role="assistant", content=tuple(blocks), reasoning=reasoning, calls=made)
        self._join(said, "\n", tuple(id_ for id_, _, _ in calls))

    def result(self, id_: str, blocks: Sequence[TextBlock]) -> None:
        """Add the result of the call `id_`.

        Raises:
            RequestRefused: no call has this id.
        """
        if id_ not in self._places:
            raise RequestRefused(f"a tool result answers the call `{id_}`, which the conversation does not have")
        order, name = self._places[id_]
        self._add(Message(role="tool", content=tuple(blocks), name=name), answers=order)

    def messages(self) -> tuple[tuple[Message, ...], tuple[tuple[str, ...], ...]]:
        """Return the messages, and the ids of the calls of each.

        Raises:
            RequestRefused: there is none, or the last one is the assistant's.
        """
        if not self._messages or all(message.role == "system" for message in self._messages):
            raise RequestRefused("the conversation has no message that the model could answer")
        if self._messages[-1].role == "assistant":
            raise unsupported("a conversation that ends with an assistant message, which the model would continue,")
        rows = zip(self._messages, self._call_ids, self._answers, strict=True)
        ordered: list[tuple[Message, tuple[str, ...], int]] = []
        for _, run in groupby(rows, lambda row: row[2] >= 0):
            ordered += sorted(run, key=lambda row: row[2])
        return tuple(row[0] for row in ordered), tuple(row[1] for row in ordered)

    def _join(self, message: Message, separator: str, call_ids: tuple[str, ...] = ()) -> None:
        """Add a message, to the one before where both have one role."""
        if not self._messages or self._messages[-1].role != message.role:
            self._add(message, call_ids)
            return
        last = self._messages[-1]
        text = separator.join(part for part in (last.text, message.text) if part)
        self._messages[-1] = structs.replace(
            last,
            content=(TextBlock(text=text),) if text else (),
            reasoning="\n".join(part for part in (last.reasoning, message.reasoning) if part),
            calls=(*last.calls, *message.calls),
        )
        self._call_ids[-1] = (*self._call_ids[-1], *call_ids)

    def _add(self, message: Message, call_ids: tuple[str, ...] = (), *, answers: int = -1) -> None:
        self._messages.append(message)
        self._call_ids.append(call_ids)
        self._answers.append(answers)

"""The tree of turns of one episode: where a request continues, what is new in it, and what was sampled there.

A node holds only what its turn adds: observation, action, logprobs. A request is matched against what the gateway sent
by a chain of hashes, a link for each message, so that it is found without rendering it. Texts of the assistant count
without the white space around them, arguments as canonical JSON; reasoning and ids do not count: clients drop or
rewrite them. On a match the sampled ids are kept, and `Renderer.extend` renders only what is new (laws L1, L5). What
does not match begins a conversation of its own through `Renderer.open`. The tree knows no engine, session or budgets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct, structs
from orl_core import Message, Renderer, RenderError, Role, ToolSpec, boundary
from orl_core.trajectory import ROOT, Turn
from orl_rollout.loop.token_buffer import TokenBuffer

from orl_gateway.dialects.exchange import Link, ModelRequest, Reply

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_DIGIT = re.compile("[0-9]")


class Place(Struct, frozen=True, kw_only=True):
    """Point at which a request continues: after `node`, or in a conversation of its own if that is None.

    `messages` are new there, `key` names the conversation with them.
    """

    request: ModelRequest
    node: Node | None
    messages: tuple[Message, ...]
    key: bytes


class Node:
    """One turn in the tree. `reply` is what the agent was sent.

    `before` counts the ids that the turn was shown of those that it continues, which are stripped by then. `results`
    counts the tool results rendered up to the action, `after` is the role of the last message before it.
    `opening` is how the conversation began, if the node begins one. `context` are the ids up to the end of the
    action, until a turn continues with them.
    """

    def __init__(self, index: int, place: Place, turn: Turn, reply: Reply) -> None:
        self.index = index
        self.parent = place.node
        self.before: int = place.node.before + place.node.length if place.node else 0
        self.turn = turn
        self.reply = reply
        self.tools: tuple[ToolSpec, ...] = place.request.tools
        self.opening = () if place.node else place.messages
        answered = sum(message.role == "tool" for message in place.messages)
        self.results: int = answered + (place.node.results if place.node else 0)
        self.after: Role = place.messages[-1].role
        self.context: TokenBuffer | None = None
        self.stripped = False

    @property
    def length(self) -> int:
        """Return how many ids of the turn later ones are shown."""
        hidden = sum(end - start for start, end in self.turn.stripped_spans)
        return len(self.turn.observation) + len(self.turn.action_ids) - hidden


class _Walk(Struct, frozen=True):
    """What is known at one message of a conversation. `key` is that of the conversation.

    `alive` are the turns that said the last action so far, `last` is the last turn that was found, and `start` counts
    the messages up to it.
    """

    key: bytes
    alive: Sequence[Node] = ()
    last: Node | None = None
    start: int = 0


class Tree:
    """The turns of one episode, in the order in which they were sampled. `strips`: as `Limits.strip_reasoning`.

    `dropped` are the turns whose text the agent left out of a message with calls.
    """

    def __init__(self, renderer: Renderer, *, strips: bool = False) -> None:
        self.nodes: list[Node] = []
        self.dropped: set[int] = set()
        self.renderer = renderer
        self._strips = strips
        self._walks: WeakKeyDictionary[Link, _Walk] = WeakKeyDictionary()
        self._by_key: dict[bytes, list[Node]] = {}
        self._by_calls: dict[tuple[str, ...], Node] = {}
        self._rendered: tuple[Place, Place, tuple[int, ...]] | None = None  # the last one: agents count before they ask

    def place(self, request: ModelRequest) -> Place:
        """Return where `request` continues. Nothing is rendered or changed."""
        walk = self._walk(request)
        new = request.messages[walk.start :]
        if walk.last is not None and all(message.role != "assistant" for message in new):
            return Place(request=request, node=walk.last, messages=_with_refused(walk.last, new), key=walk.key)
        return Place(request=request, node=None, messages=request.messages, key=walk.key)

    def _walk(self, request: ModelRequest) -> _Walk:
        """Return what is known at the last message of `request`. Messages of an earlier request are not looked at."""
        new: list[Link] = []
        link = request.point.last if request.point else None
        while link is not None and link not in self._walks:
            new.append(link)
            link = link.before
        walk = self._walks[link] if link is not None else _Walk(root_key(request.tools))
        for index, link in enumerate(reversed(new), len(request.messages) - len(new)):
            walk = self._walks[link] = self._step(walk, link, index, request.messages)
        return walk

    def _step(self, walk: _Walk, link: Link, index: int, messages: Sequence[Message]) -> _Walk:
        """Return what is known at `link`, which holds `messages[index]`, given what is known before it."""
        message, key = link.message, next_key(walk.key, self._as_sent(link))
        if message.role != "assistant":
            return structs.replace(walk, key=key)
        alive = [
            node
            for node in self._by_key.get(key, ())
            if (node.parent is None or node.parent in walk.alive) and _reasons_alike(node, message, messages)
        ]
        alive = [node for node in alive if node.reply.call_ids == link.call_ids] or alive
        if not alive:
            return structs.replace(walk, key=key, alive=())
        if not message.text.strip() and alive[-1].reply.text.strip():
            self.dropped.add(alive[-1].index)
        return _Walk(key, alive, alive[-1], index + 1)

    def _as_sent(self, link: Link) -> Message:
        """Return the message with the text that a client left out: the ids of its calls say which reply is meant."""
        node = self._by_calls.get(link.call_ids) if link.call_ids and not link.message.text.strip() else None
        return structs.replace(link.message, content=node.reply.message.content) if node else link.message

    def observe(self, place: Place) -> tuple[Place, tuple[int, ...]]:
        """Return the ids of what is new, and the place that they are for.

        If the chat template cannot continue the node, that is a conversation of its own.
        """
        last, ids = self._rendered, None
        same = place.node, place.key, place.messages  # a key says nothing of reasoning, which an opening shows
        if last is not None and (last[0].node, last[0].key, last[0].messages) == same:
            return last[1:]
        now = place
        with boundary(RenderError, "rendering"):
            if (node := place.node) is not None:
                with suppress(RenderError):
                    ids = self.renderer.extend(node.turn.action_ids, place.messages, calls_before=node.results)
            if ids is None:
                now = structs.replace(place, node=None, messages=place.request.messages)
                ids = self.renderer.open(now.messages, now.request.tools)
        self._rendered = place, now, ids
        return now, ids

    def shown(self, place: Place) -> int:
        """Return how many ids the engine is shown at `place` before the new messages."""
        return place.node.before + self._strip(place.node).length if place.node else 0

    def take_context(self, place: Place) -> TokenBuffer:
        """Return the ids that are shown at `place` before the new messages; the caller appends to it.

        The first turn that continues a node takes over its buffer, a later one gets a copy.
        """
        node = place.node
        if node is None:
            return TokenBuffer()
        self._strip(node)
        kept, node.context = node.context, None
        if kept is None:
            path: list[Node] = []
            while node is not None:
                path.append(self._strip(node))
                node = node.parent
            return TokenBuffer(token for one in reversed(path) for token in one.turn.visible_ids)
        begins = len(kept) - len(node.turn.observation) - len(node.turn.action_ids)
        for start, end in reversed(node.turn.stripped_spans):
            kept.cut(begins + start, begins + end)
        return kept

    def commit(self, place: Place, turn: Turn, reply: Reply | None, context: TokenBuffer) -> Node:
        """Store a turn that was sampled at `place`, and return its node. `context` are the ids up to its end.

        A turn without a reply was not finished: nothing can continue it.
        """
        before = place.node
        follows = (before.index if before else ROOT) == len(self.nodes) - 1
        turn = structs.replace(
            turn,
            continues=None if follows else before.index if before else ROOT,
            messages=place.messages,
        )
        node = Node(len(self.nodes), place, turn, reply or Reply(name=""))
        self.nodes.append(node)
        if reply is not None:
            node.context = context
            self._by_key.setdefault(next_key(place.key, node.reply.message), []).append(node)
            self._by_calls[node.reply.call_ids] = node
        return node

    def _strip(self, node: Node) -> Node:
        """Note what later turns are not shown of a node, where reasoning is stripped. Return the node."""
        if self._strips and not node.stripped:
            turn = node.turn
            with boundary(RenderError, "stripping reasoning"):
                hidden = self.renderer.hide(turn.observation, turn.action_ids, turn.spans or (), after=node.after)
            node.turn, node.stripped = structs.replace(turn, stripped_spans=hidden), True
        return node


def _reasons_alike(node: Node, message: Message, messages: Sequence[Message]) -> bool:
    """Return whether the reasoning of `message` is that of the node, or was dropped.

    A node that begins a conversation was shown the reasoning of the messages before it: that is compared too.
    """
    if not _same_or_dropped(message.reasoning, node.reply.reasoning):
        return False
    return all(
        _same_or_dropped(now.reasoning, then.reasoning) for now, then in zip(messages, node.opening, strict=False)
    )


def _same_or_dropped(now: str, then: str) -> bool:
    return now.strip() in ("", then.strip())


def _with_refused(node: Node, new: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the new messages with our own results of the calls that were not sent, in the order of the calls.

    Each has the id of its call, whatever id the agent has for it.
    """
    results = [message for message in new if message.role == "tool"]
    if not results:
        return new
    others = [message for message in new if message.role != "tool"]
    for position, result in node.reply.refused:
        results.insert(position, Message(role="tool", name=result.name, content=result.content))
    answers = zip(results, node.turn.action.calls, strict=False)
    return (*(structs.replace(result, id=call.id) for result, call in answers), *others)


def root_key(tools: Sequence[ToolSpec]) -> bytes:
    """Return the beginning of every conversation with these tools."""
    return _hash(b"", *(json.dumps(msgspec.to_builtins(tool), sort_keys=True) for tool in tools))


def next_key(key: bytes, message: Message) -> bytes:
    """Return the key of the conversation `key` with one more message."""
    if message.role == "assistant":
        calls = (part for call in message.calls for part in (call.name, canonical(call.arguments)))
        return _hash(key, "assistant", message.text.strip(), *calls)
    return _hash(key, message.role, message.name, message.text)


def canonical(arguments: Mapping[str, Any]) -> str:
    """Return arguments as JSON that is the same for all writers: keys in order, every number as a double.

    Some clients know no other numbers: a large integer comes back rounded.
    """
    try:
        text = msgspec.json.encode(arguments, order="sorted").decode()
    except (OverflowError, ValueError):  # an integer of more than 64 bits, or a lone surrogate
        text = json.dumps(arguments, sort_keys=True)
    if _DIGIT.search(_STRING.sub("", text)) is None:
        return text
    return json.dumps(json.loads(text, parse_int=_number, parse_float=_number))


def _number(text: str) -> float:
    return float(text) + 0.0  # -0.0 becomes 0.0


def _hash(before: bytes, *parts: str) -> bytes:
    """Hash `parts`, each with its length, so that no two lists of parts look alike."""
    chain = blake2b(before, digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        chain.update(b"%d:" % len(data))
        chain.update(data)
    return chain.digest()

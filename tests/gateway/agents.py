"""Agents of the gateway's tests: they keep a conversation in the wire format of one API, as its clients do.

`Model` is an engine whose every action is another one; it records what it was shown.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orl_core.limits import Limits
from orl_core.messages import ToolSpec
from orl_core.task import Task
from orl_core.trajectory import Generation, RolloutSpec
from orl_gateway import Episode
from orl_gateway.dialects.anthropic import ANTHROPIC
from orl_gateway.dialects.chat import CHAT
from orl_gateway.dialects.client_api import ClientApi
from orl_gateway.dialects.responses import RESPONSES
from orl_rollout.loop.clock import never
from orl_testing import ScriptedSession

from tests.kit.tokenizers import renderer_of, tokenizer

TOKENIZER = tokenizer(thinking=True)
RENDERER = renderer_of(thinking=True)
TASK = Task(env_name="A/B", deployment_name="A/B")
LIMITS = Limits(max_turns=40, context_tokens=1 << 16, rollout_tokens=1 << 20)
LOOK = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {"at": {}}}}
WAIT = {"name": "wait", "description": "", "parameters": {"type": "object", "properties": {}}}


def ids_of(text: str) -> tuple[int, ...]:
    """The ids of an action, its stop token included."""
    return tuple(TOKENIZER.encode_joint(f"{text}<|im_end|>"))


def call_text(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def generation_of(text: str, *, finish: Any = "stop") -> Generation:
    ids = ids_of(text) if finish == "stop" else ids_of(text)[:-1]
    return Generation(token_ids=ids, logprobs=tuple(-0.5 - 0.001 * at for at in range(len(ids))), finish_reason=finish)


class Model:
    """An engine. Its actions have a number in their text; `kinds` are used in turn."""

    def __init__(self, kinds: Sequence[str] = ("text", "call", "reasoned", "calls")) -> None:
        self.kinds = kinds
        self.requests: list[tuple[tuple[int, ...], Generation]] = []
        self.samplings: list[dict[str, Any]] = []

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        number = len(self.requests)
        kind = self.kinds[number % len(self.kinds)]
        text = {
            "text": f"I say the number {number}.",
            "call": call_text("look", at=f"door {number}", far=1.0, deep={"b": [1, 2.5], "a": 10**20}),
            "reasoned": f"<think>\nThought {number}.\n</think>\n\nI look {number}.\n{call_text('look', at=number)}",
            "calls": f"{call_text('look', at=number)}\n{call_text('wait')}",
            "broken": f'Hm {number}.\n<tool_call>\n{{"name": "look", \n</tool_call>',
            "half_broken": f'{call_text("look", at=number)}\n<tool_call>\n{{"name": \n</tool_call>',
        }[kind]
        generation = generation_of(text)
        self.requests.append((tuple(ids), generation))
        self.samplings.append(dict(sampling))
        return generation


def episode_of(engine: Any, session: Any = None, stopped: Callable[[], bool] = never, **limits: Any) -> Episode:
    """An episode of a session that answers nothing, unless one is given."""
    changed = Limits(**{name: limits.get(name, getattr(LIMITS, name)) for name in Limits.__struct_fields__})
    job = RolloutSpec(task=TASK, rollout_id="k", limits=changed, sampling={"temperature": 0.7})
    session = session or ScriptedSession(tools=(ToolSpec(name="look"), ToolSpec(name="wait")))
    return Episode(job, session=session, renderer=RENDERER, engine=engine, stopped=stopped)


class Agent:
    """A conversation in the format of one API. Subclasses know the format; `wire` is the body of the next request."""

    api: ClientApi
    messages = "messages"

    def __init__(self, *, system: str = "You play.", tools: Sequence[dict[str, Any]] = (LOOK, WAIT)) -> None:
        self.wire: dict[str, Any] = {"model": "m", self.messages: []}
        self.heard = False
        self.last = ""  # text of the model
        self.asked: dict[str, Any] = {}  # the latest request
        self.owed: list[str] = []  # ids of the calls that no result answers
        self.begin(system, tools)

    def begin(self, system: str, tools: Sequence[dict[str, Any]]) -> None:
        raise NotImplementedError

    def add(self, body: dict[str, Any]) -> list[str]:
        """Append a reply; return the ids of its calls."""
        raise NotImplementedError

    def add_results(self, results: Sequence[tuple[str, str]]) -> None:
        raise NotImplementedError

    @property
    def said(self) -> list[dict[str, Any]]:
        return self.wire[self.messages]

    def user(self, text: str) -> None:
        self.said.append({"role": "user", "content": text})

    def hear(self, body: dict[str, Any]) -> None:
        self.asked = copy.deepcopy(self.wire)
        found = re.search(r"I (say the number|look) \d+\.?", json.dumps(body))
        self.owed, self.heard, self.last = self.add(body), True, found[0] if found else self.last

    def answer(self, text: str) -> None:
        """Answer what was heard: a result for each call, in the reverse order, else a user message."""
        self.heard = False
        results = [(id_, f"{text} of {at}") for at, id_ in enumerate(self.owed)]
        if not results:
            self.user(text)
            return
        self.add_results(results[::-1])
        self.owed = []

    def branch(self) -> Agent:
        return copy.deepcopy(self)

    def repeated(self) -> Agent:
        """An agent that asks what this one asked."""
        agent = self.branch()
        agent.wire, agent.heard = copy.deepcopy(self.asked or self.wire), False
        return agent

    def request(self) -> bytes:
        return json.dumps(self.wire).encode()

    def rewrite(self) -> None:
        """Write the conversation as another client would, with the same meaning."""
        self.wire[self.messages] = [rewritten(one) for one in self.said]


def rewritten(tree: Any) -> Any:
    """The same JSON from another writer: keys in another order, whole floats without their point."""
    if isinstance(tree, dict):
        return {name: rewritten_field(name, tree[name]) for name in sorted(tree, reverse=True)}
    if isinstance(tree, list):
        return [rewritten(one) for one in tree]
    return int(tree) if isinstance(tree, float) and tree.is_integer() else tree


def rewritten_field(name: str, value: Any) -> Any:
    if name == "arguments" and isinstance(value, str):
        return json.dumps(rewritten(json.loads(value)), separators=(",", ":"))
    return rewritten(value)


class ChatAgent(Agent):
    api = CHAT

    def begin(self, system: str, tools: Sequence[dict[str, Any]]) -> None:
        self.said.append({"role": "system", "content": system})
        self.wire["tools"] = [{"type": "function", "function": tool} for tool in tools]

    def add(self, body: dict[str, Any]) -> list[str]:
        message = body["choices"][0]["message"]
        self.said.append({name: value for name, value in message.items() if value is not None})
        return [call["id"] for call in message.get("tool_calls") or ()]

    def add_results(self, results: Sequence[tuple[str, str]]) -> None:
        for id_, text in results:
            self.said.append({"role": "tool", "tool_call_id": id_, "content": text})


class ResponsesAgent(Agent):
    api = RESPONSES
    messages = "input"

    def begin(self, system: str, tools: Sequence[dict[str, Any]]) -> None:
        self.wire["instructions"] = system
        self.wire["tools"] = [{"type": "function", **tool} for tool in tools]

    def add(self, body: dict[str, Any]) -> list[str]:
        self.said.extend(body["output"])
        return [item["call_id"] for item in body["output"] if item["type"] == "function_call"]

    def add_results(self, results: Sequence[tuple[str, str]]) -> None:
        for id_, text in results:
            self.said.append({"type": "function_call_output", "call_id": id_, "output": text})


class AnthropicAgent(Agent):
    api = ANTHROPIC

    def begin(self, system: str, tools: Sequence[dict[str, Any]]) -> None:
        self.wire |= {"system": system, "max_tokens": 500}
        self.wire["tools"] = [
            {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
            for tool in tools
        ]

    def add(self, body: dict[str, Any]) -> list[str]:
        self.said.append({"role": "assistant", "content": body["content"]})
        return [block["id"] for block in body["content"] if block["type"] == "tool_use"]

    def add_results(self, results: Sequence[tuple[str, str]]) -> None:
        blocks = [{"type": "tool_result", "tool_use_id": id_, "content": text} for id_, text in results]
        self.said.append({"role": "user", "content": blocks})


AGENTS: dict[str, Callable[..., Agent]] = {
    "chat": ChatAgent,
    "responses": ResponsesAgent,
    "anthropic": AnthropicAgent,
}


async def turn(episode: Episode, agent: Agent) -> dict[str, Any]:
    """Ask for one action, and let the agent hear it."""
    request = agent.api.read(agent.request(), episode.history)
    body = agent.api.body(await episode.ask(request), request)
    agent.hear(body)
    return body

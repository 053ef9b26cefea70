"""From an action to the reply that an agent gets: which calls it is sent, what it reads, and how the turn ended.

A call that cannot be made is a mistake of the model (law L3). If other calls are sent, the model reads our own
result of it in the next turn. An action without any call that can be sent is a text for the agent, as servers of models
give it, and holds what the model wrote.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec import structs
from orl_core.messages import Action, FailureKind, ParseFailure, ToolCall, ToolResult
from orl_rollout.loop.mistakes import refused

from orl_gateway.dialects.exchange import ModelRequest, Reply, SentCall


def reply_to(request: ModelRequest, action: Action, counted: Reply, *, cut: bool, most: int | None) -> Reply:
    """Return the reply to `request`. `counted` is the reply with its name and counts alone.

    `cut` tells that a budget ended the action: nothing in it is done. `most` is how many results of one action the chat
    template can show; None is any number.
    """
    sent, failures = ([], []) if cut else _share_out(action, request, counted.name, most)
    text = action.text
    if not sent:
        text = "\n".join(part for part in (text, *map(_written, action.calls)) if part)
    stop = "" if cut else _first(request.stop, text)
    ending = "calls" if sent else "length" if cut else "stop_sequence" if stop else "stop"
    room = None if most is None else max(0, most - len(sent))
    return structs.replace(
        counted,
        text=text[: text.index(stop)] if stop else text,
        reasoning=action.reasoning,
        calls=tuple(sent),
        ending=ending,
        stop_sequence=stop,
        refused=tuple(failures[:room] if sent else failures),
    )


def _share_out(
    action: Action, request: ModelRequest, name: str, most: int | None
) -> tuple[list[SentCall], list[tuple[int, ToolResult]]]:
    """Return the calls that are sent, and the results of those that are not."""
    limits = [0 if not request.allows_calls else 1 if not request.allows_parallel else len(action.calls), most]
    limit = min(one for one in limits if one is not None)
    sent: list[SentCall] = []
    failures: list[tuple[int, ToolResult]] = []
    for position, call in enumerate(action.calls):
        if isinstance(call, ParseFailure):
            failures.append((position, refused(call)))
        elif request.allowed is not None and call.name not in request.allowed:
            why = f"`{call.name}` is not allowed in this turn, and was not called"
            failures.append((position, _unmade(call, FailureKind.UNKNOWN_TOOL, why)))
        elif len(sent) < limit:
            sent.append(SentCall(id=f"call_{name}_{len(sent)}", call=call))
        else:
            why = f"at most {limit} calls are made in this turn, and this one was not made"
            failures.append((position, _unmade(call, FailureKind.TOO_MANY_CALLS, why)))
    return sent, failures


def _written(call: ToolCall | ParseFailure) -> str:
    """Return a call as text: what the model wrote, or its JSON."""
    if isinstance(call, ParseFailure):
        return call.text
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def _unmade(call: ToolCall, kind: FailureKind, why: str) -> ToolResult:
    return refused(ParseFailure(kind=kind, name=call.name, message=why))


def _first(stops: Sequence[str], text: str) -> str:
    """Return the stop sequence that `text` holds first; empty if it holds none."""
    matches = [(text.index(stop), stop) for stop in stops if stop and stop in text]
    return min(matches)[1] if matches else ""

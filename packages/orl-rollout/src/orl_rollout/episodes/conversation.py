"""An episode as a conversation: each message, and its origin. Pure.

Exports, uploads and judges of groups read it. Each of them leaves out what it does not need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from orl_core import Action, Message, ParseFailure, TextBlock, ToolCall, ToolResult, Trajectory, text_message


class Said(Struct, frozen=True, kw_only=True):
    """One message of an episode. `turn` is the index of its turn; None in the opening.

    `action` is the model's own form of the message. `result` answers call `place` of the action before it. `nudge`
    marks the loop's own words. All other messages of a turn are those of an agent.
    """

    message: Message
    turn: int | None = None
    action: Action | None = None
    result: ToolResult | None = None
    place: int = 0
    nudge: bool = False


def conversation(trajectory: Trajectory, turns: Sequence[int] | None = None) -> Iterator[Said]:
    """Yield what was said in `turns`, the indexes of turns, else in all of them. The opening comes first.

    A call that could not be parsed is text that the model wrote, and its answer is the user's.
    """
    numbers = range(len(trajectory.turns)) if turns is None else turns
    if not numbers or not trajectory.turns[numbers[0]].messages:
        yield from (Said(message=message) for message in trajectory.messages)
    for number in numbers:
        turn = trajectory.turns[number]
        opens = number == numbers[0]
        yield from (Said(message=message, turn=None if opens else number) for message in turn.messages)
        yield Said(message=_assistant(turn.action), turn=number, action=turn.action)
        calls = turn.action.calls
        for place, result in enumerate(turn.results):
            answered = place < len(calls) and isinstance(calls[place], ToolCall)
            name, role = (result.name, "tool") if answered else ("", "user")
            message = Message(role=role, name=name, content=result.content)
            yield Said(message=message, turn=number, result=result, place=place)
        if turn.nudge:
            yield Said(message=text_message("user", turn.nudge), turn=number, nudge=True)


def _assistant(action: Action) -> Message:
    broken = [call.text for call in action.calls if isinstance(call, ParseFailure)]
    text = "\n".join(filter(None, (action.text, *broken)))
    calls = tuple(call for call in action.calls if isinstance(call, ToolCall))
    content = (TextBlock(text=text),) if text else ()
    return Message(role="assistant", content=content, reasoning=action.reasoning, calls=calls)

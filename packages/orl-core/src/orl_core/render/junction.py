"""The junction: where an action ends and the next messages begin. No action id is ever changed or taken away.

Stop tokens with the same meaning are named here, because a template cannot tell them. Some templates print another stop
before each role (GLM: the opener of that role). After such a stop only that role can follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orl_core.messages import Role

# Stop tokens that end an action alike: Llama's end of message and of turn, gpt-oss's end as sampled and as history.
ALIKE = (frozenset({"<|eot_id|>", "<|eom_id|>"}), frozenset({"<|return|>", "<|end|>"}))


def closings(stops: Sequence[str], vocabulary: Mapping[str, int]) -> tuple[str, ...]:
    """Return the control strings that may end an action: the stop tokens and those like them."""
    like = [text for group in ALIKE if group.intersection(stops) for text in sorted(group) if text in vocabulary]
    return tuple(dict.fromkeys((*stops, *like)))


class ActionBoundary:
    """Joins actions to what follows. `closing` is the id that the template closes an action with, by the role next.

    The attribute `closing` holds every id that may be there instead of the template's own, whatever the role.
    """

    def __init__(self, closing: Mapping[Role, int], vocabulary: Mapping[str, int]) -> None:
        groups = [frozenset(vocabulary[text] for text in group if text in vocabulary) for group in ALIKE]
        self._fits = {
            role: frozenset({token}).union(*(group for group in groups if token in group))
            for role, token in closing.items()
        }
        self.follows = frozenset(closing)
        self.closing = frozenset[int]().union(*self._fits.values())

    def can_follow(self, action_ids: Sequence[int], role: Role) -> bool:
        """Return whether a message of this role may follow: the template allows it, and no other close was sampled."""
        if role not in self._fits:
            return False
        if not action_ids or action_ids[-1] not in self.closing:
            return True
        return action_ids[-1] in self._fits[role]

    def join(self, action_ids: Sequence[int], ids: Sequence[int], role: Role) -> tuple[int, ...]:
        """Return `ids` without their closing where the action has one that means the same; else all of them."""
        return tuple(ids[1:] if action_ids and action_ids[-1] in self._fits[role] else ids)

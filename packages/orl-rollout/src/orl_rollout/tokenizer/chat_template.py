# pyright: reportPrivateUsage=false
"""A chat template and the variables that a run freezes for it: the reasoning switch, the user's own, the clock.

The text is compiled in transformers' own environment, because templates are written for its sandbox, filters and tags.
A template gets the variables of transformers' `apply_chat_template`, so the prompt equals that of SGLang and vLLM. Two
things differ: the clock is fixed, and the reasoning switch is set under the name that the template reads. The module
must not know tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from orl_core.errors import ConfigError, RenderError, boundary

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment

Thinking = bool | Literal["keep", "strip"] | None


class _Switch(NamedTuple):
    """A variable that turns reasoning on and off. Of several words, the first one in the template counts."""

    name: str
    on: tuple[object, ...]
    off: tuple[object, ...]


# In order of preference: the first that changes a prompt is the switch. None leaves the variable out.
_SWITCHES = (
    _Switch("enable_thinking", (True,), (False,)),
    _Switch("thinking", (True,), (False,)),
    _Switch("reasoning", (True,), (False,)),
    _Switch("thinking_mode", ("on", "enabled"), ("off", "disabled")),
    _Switch("thinking_option", ("on",), ("off",)),
    _Switch("thinking_budget", (None,), (0,)),
    _Switch("reasoning_effort", ("high",), ("none", "no_think", "minimal")),
)
# The amount of reasoning. If a template reads one of these, its model always thinks.
_LEVELS = frozenset({"reasoning_effort", "thinking_effort", "reasoning_strength"})
# Variables that keep the reasoning of earlier turns in a rendered history, and the value that keeps it.
_HISTORY = {
    "preserve_thinking": True,
    "preserved_thinking": True,
    "keep_past_thinking": True,
    "clear_thinking": False,
    "drop_thinking": False,
    "truncate_history_thinking": False,
}
# The types of a switch's values. A template treats any other value as one of the two, or as none.
_KINDS = {
    **dict.fromkeys(_HISTORY, (bool,)),
    **{switch.name: tuple({type(value): 0 for value in (*switch.on, *switch.off)}) for switch in _SWITCHES},
}
_ORL_FILLS_IN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "strftime_now"})
_NONSENSE = "qzxvwk"  # a word that no template knows
_REASONING = ("reasoning_content", "thinking", "reasoning")  # as transformers looks for it in a message


class ChatTemplate:
    """One compiled template with its frozen variables. `render` may be called from several threads.

    `thinking` sets the reasoning switch; `variables` are the user's own (`chat_template_kwargs`) and win over it.
    `clock` is what `strftime_now` shows, None is now.
    """

    def __init__(
        self,
        text: str,
        *,
        special_tokens: Mapping[str, Any],
        thinking: Thinking = None,
        variables: Mapping[str, Any] | None = None,
        clock: datetime | None = None,
    ) -> None:
        from transformers.utils import chat_template_utils

        with boundary(RenderError, "compiling the chat template"):
            self._template: Any = chat_template_utils._compile_jinja_template(text)
            _remember_safe_attributes(self._template.environment)
            self.reads, self._words = _read(self._template.environment, text)
        self._text = text
        chosen = dict(variables or {})
        self._check(chosen)
        self._fixed = {**special_tokens, "strftime_now": (clock or datetime.now()).strftime}
        self.switch = self._find_switch()
        self.variables: dict[str, Any] = {**self._set(thinking), **chosen}
        for name, value in chosen.items():
            if isinstance(value, str) and value not in self._words:
                self._check_word(name, value)

    @property
    def can_think(self) -> bool:
        """Return whether the text mentions reasoning. A template without it cannot ask a model to think."""
        text = self._text.lower()
        return "think" in text or "reasoning" in text

    @property
    def shows_time(self) -> bool:
        """Return whether the template reads the time."""
        return "strftime_now" in self._text

    @property
    def always_thinks(self) -> bool:
        """Return whether the template sets an amount of reasoning and cannot turn it off."""
        return self.switch is None and not _LEVELS.isdisjoint(self.reads)

    def contrary(self, variables: Mapping[str, Any], *, on: bool) -> str:
        """Return `name: value` if `variables` set the switch contrary to `on`; empty otherwise."""
        if self.switch is None or self.switch.name not in variables:
            return ""
        value, other = variables[self.switch.name], self.switch.off[0] if on else self.switch.on[0]
        return f"{self.switch.name}: {json.dumps(value)}" if value == other else ""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text of a conversation. `variables` replace the frozen ones."""
        return self._template.render(
            messages=[with_reasoning(message) for message in messages],
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **{**self._fixed, **(self.variables if variables is None else variables)},
        )

    def _check(self, chosen: Mapping[str, Any]) -> None:
        if own := sorted(_ORL_FILLS_IN.intersection(chosen)):
            raise ConfigError(f"`chat_template_kwargs` sets `{own[0]}`, which orl fills in itself: leave it out")
        if unread := sorted(chosen.keys() - self.reads):
            known = ", ".join(sorted(self.reads - _ORL_FILLS_IN)) or "none"
            raise ConfigError(
                f"`chat_template_kwargs` sets `{unread[0]}`, which the chat template does not read; it reads: {known}"
            )
        for name, kinds in _KINDS.items():
            if name in chosen and type(chosen[name]) not in kinds:
                wanted = " or ".join(kind.__name__ for kind in kinds)
                value = json.dumps(chosen[name], default=str)
                raise ConfigError(f"`chat_template_kwargs` sets `{name}: {value}`, which must be of type {wanted}")

    def _check_word(self, name: str, value: str) -> None:
        """Refuse a value that renders like a nonsense word, if the words of the template render differently.

        A template that prints the value cannot be checked.
        """
        nonsense = self._shown({**self.variables, name: _NONSENSE})
        if self._shown({**self.variables, name: value}) != nonsense:
            return
        words = sorted(word for word in self._words if word.isidentifier())
        if known := [word for word in words if self._shown({**self.variables, name: word}) != nonsense]:
            raise ConfigError(
                f"`chat_template_kwargs` sets `{name}: {json.dumps(value)}`, which the chat template does not know; "
                f"it knows: {', '.join(known)}. Leave `{name}` out for its default"
            )

    def _set(self, thinking: Thinking) -> dict[str, Any]:
        """Return the variables of `thinking`: the switch, and those of the reasoning of earlier turns."""
        on = bool(thinking)
        chosen: dict[str, Any] = {}
        if self.switch is not None:
            name, values = self.switch.name, self.switch.on if on else self.switch.off
            chosen |= {name: values[0]} if values[0] is not None else {}
        if on:
            keep = thinking != "strip"
            chosen |= {name: kept is keep for name, kept in _HISTORY.items() if name in self.reads}
        return chosen

    def _find_switch(self) -> _Switch | None:
        """Return the first known switch that the template reads and that changes what it renders."""
        for switch in _SWITCHES:
            if switch.name not in self.reads:
                continue
            for on in self._spelled(switch.on):
                for off in self._spelled(switch.off):
                    if self._changes(switch.name, on, off):
                        return _Switch(switch.name, (on,), (off,))
        return None

    def _spelled(self, values: Sequence[object]) -> list[object]:
        """Leave out words that the template does not spell."""
        return [value for value in values if not isinstance(value, str) or value in self._words]

    def _changes(self, name: str, on: object, off: object) -> bool:
        shown = [self._shown({} if value is None else {name: value}) for value in (on, off)]
        return any(None not in pair and pair[0] != pair[1] for pair in zip(*shown, strict=True))

    def _shown(self, variables: Mapping[str, Any]) -> list[str | None]:
        """Return the renderings of some short conversations."""
        return [self._attempt(messages, tools, variables) for messages in _PROBES for tools in (None, _TOOLS)]

    def _attempt(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, more: Mapping[str, Any]
    ) -> str | None:
        """Render; return None if the template refuses it."""
        try:
            with boundary(RenderError, "trying the chat template"):
                return self.render(messages, tools=tools, add_generation_prompt=True, variables=more)
        except RenderError:
            return None


def with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the message with its reasoning under each name that templates read, as transformers does."""
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _remember_safe_attributes(environment: SandboxedEnvironment) -> None:
    """Ask the sandbox once for each type and attribute: its answer depends on them alone."""
    ask, known = type(environment).is_safe_attribute, dict[tuple[type, str], bool]()

    def is_safe(obj: object, attr: str, value: object) -> bool:
        key = type(obj), attr
        if key not in known:
            known[key] = ask(environment, obj, attr, value)
        return known[key]

    environment.is_safe_attribute = is_safe


def _read(environment: Any, text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the variables that a template takes from its caller, and the words that it spells."""
    from jinja2 import meta, nodes

    tree = environment.parse(text)
    words = {constant.value for constant in tree.find_all(nodes.Const) if isinstance(constant.value, str)}
    own = _assigned(tree) | environment.globals.keys()
    names = meta.find_undeclared_variables(tree) - own  # it folds the constants of `tree`
    return frozenset(names), frozenset(words)


def _assigned(tree: Any) -> frozenset[str]:
    """Return the names that a template assigns before it reads them. Its macros run after the text around them.

    Jinja2 counts a name that is assigned in one branch as undeclared, but the template overwrites the caller's value.
    """
    from jinja2 import nodes

    first: dict[str, bool] = {}  # the name, and whether its first place is an assignment
    waiting, macros = [tree], list[Any]()
    while waiting or macros:
        node = waiting.pop() if waiting else macros.pop(0)
        if isinstance(node, nodes.Name) and node.ctx != "param":
            first.setdefault(node.name, node.ctx == "store")
        members = list(node.iter_child_nodes())
        if isinstance(node, nodes.Assign | nodes.AssignBlock):  # a value is read before its name is assigned
            members = [*members[1:], members[0]]
        elif isinstance(node, nodes.If):  # all conditions are read before a branch assigns
            members = [node.test, *node.elif_, *node.body, *node.else_]
        elif isinstance(node, nodes.For):  # its variable is known inside alone
            members = members[1:]
        macros += [member for member in members if isinstance(member, nodes.Macro)]
        waiting += [member for member in reversed(members) if not isinstance(member, nodes.Macro)]
    return frozenset(name for name, stored in first.items() if stored)


_USER = {"role": "user", "content": "Hi."}
_SYSTEM = {"role": "system", "content": "Be brief."}
_SAID = {"role": "assistant", "content": "Hello.", "reasoning_content": "A greeting."}
_PROBES: tuple[list[dict[str, Any]], ...] = ([_USER], [_SYSTEM, _USER], [_USER, _SAID, _USER])
_TOOLS = [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}]

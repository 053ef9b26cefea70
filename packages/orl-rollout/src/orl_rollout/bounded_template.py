# pyright: reportPrivateUsage=false
"""A chat template that cannot run forever: the sandbox of transformers, with every loop counted.

A template is code from a checkpoint. jinja2's sandbox keeps it from the machine, but not from its time and memory. Here
every turn of a loop and every call of a macro costs a step, a render has a deadline, and operators that build long
texts and lists are checked before they run. The module knows nothing of tokens.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from orl_core.errors import RenderError, boundary

if TYPE_CHECKING:
    from jinja2 import nodes

MOST_STEPS = 300_000  # turns of loops in one render: a template that compares 500 messages with each other takes them
MOST_SECONDS = 10.0  # of one render
LEAST_SHARE = 1 / 64  # of both that a render has after failures in a row, each of which halves it
MOST_LENGTH = 1 << 24  # characters of a text, members of a list, bits of a number
_WIDTH = re.compile(r"\d{6,}|%[^a-zA-Z%]*\*|:[^{}]*\{")  # in a format: one that fills memory, or is computed
_GUARDED = ("batch", "center", "format", "indent", "join", "replace", "slice", "wordwrap")


class _Meter:
    """What one render may still spend."""

    def __init__(self, share: float) -> None:
        self.left = int(MOST_STEPS * share)
        self.ends = time.monotonic() + MOST_SECONDS * share

    def take(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0 or time.monotonic() > self.ends:
            raise RenderError(
                f"the chat template takes more than {MOST_STEPS:,} turns of its loops, or too long, to render a "
                "conversation: it may never end"
            )


_METER: ContextVar[_Meter] = ContextVar("_METER")


class BoundedTemplate:
    """A compiled template. `render` may be called from several threads.

    Raises:
        RenderError: the text is no template.
    """

    def __init__(self, text: str) -> None:
        from transformers.utils import chat_template_utils

        with boundary(RenderError, "compiling the chat template"):
            # Not the text itself: a compiler without limits works out `9**9**9`.
            empty: Any = chat_template_utils._compile_jinja_template("")
            self.environment: Any = _bounded(empty.environment)
            self._template: Any = self.environment.from_string(text)
        self._share = 1.0

    def render(self, **variables: Any) -> str:
        """Return the text that the template makes of `variables`.

        Raises:
            RenderError: it takes too long, or builds a text that is too long.
            jinja2.TemplateError: the template refuses.
        """
        given = _METER.set(_Meter(self._share))
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(**variables):
                parts.append(part)
                size += len(part)
                if size > MOST_LENGTH:
                    raise RenderError(f"the chat template prints more than {MOST_LENGTH:,} characters")
            self._share = 1.0
        except RenderError:  # certification tries a template a hundred times
            self._share = max(self._share / 2, LEAST_SHARE)
            raise
        finally:
            _METER.reset(given)
        return "".join(parts)


def _bounded(environment: Any) -> Any:
    """Return the environment with the same filters, tags and globals, and every loop and operator counted."""
    bounded = environment.overlay()
    parse = bounded._parse

    def counted(*args: Any) -> nodes.Template:
        return _counted(parse(*args))

    bounded._parse = counted
    bounded.tick, bounded.walk, bounded.joined = _tick, _walk, _joined
    bounded.intercepted_binops = frozenset({"+", "*", "**", "%"})
    bounded.call_binop = _binop
    bounded.filters = {**bounded.filters, **{name: _guarded(bounded.filters[name]) for name in _GUARDED}}
    bounded.call = _guarded_call(bounded.call)
    bounded.wrap_str_format = _guarded_format(bounded.wrap_str_format)
    return bounded


def _counted(tree: nodes.Template) -> nodes.Template:
    """Put a step into every loop and macro, and check what `~` joins."""
    from jinja2 import nodes

    def call(name: str, *args: nodes.Expr) -> nodes.Call:
        return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)

    for node in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
        node.body.insert(0, nodes.ExprStmt(call("tick")))
        if isinstance(node, nodes.For):
            node.iter = call("walk", cast("nodes.Expr", node.iter))
    for node in list(tree.find_all(nodes.Concat)):
        node.nodes = [call("joined", nodes.List(cast("list[Any]", node.nodes)))]
    tree.set_environment(cast("Any", tree.environment))
    return cast("nodes.Template", tree.set_lineno(1, override=False))


def _tick() -> None:
    _METER.get().take(1)


def _walk(members: Any) -> Any:
    """Count what a loop looks at, its filtered members included, and return it."""
    _METER.get().take(len(members) if hasattr(members, "__len__") else 1)
    return members


def _joined(parts: list[Any]) -> str:
    texts = [str(part) for part in parts]
    _check(sum(map(len, texts)))
    return "".join(texts)


def _check(size: float) -> None:
    if size > MOST_LENGTH:
        raise RenderError(f"the chat template builds a text, a list or a number of more than {MOST_LENGTH:,}")


def _length(value: object) -> int:
    if isinstance(value, int):
        return value.bit_length()
    return len(cast("list[object]", value)) if isinstance(value, str | list | tuple) else 1


def _binop(_: object, name: str, left: Any, right: Any) -> Any:
    numbers = isinstance(left, int) and isinstance(right, int)
    if name == "+":
        _check(_length(left) + _length(right))
    elif name == "*":
        _check(_length(left) + _length(right) if numbers else _times(left, right))
    elif name == "**" and numbers:
        _check(_length(left) * abs(right))
    elif name == "%":
        _check_format(left)
    return _OPERATORS[name](left, right)


_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": lambda left, right: left + right,
    "*": lambda left, right: left * right,
    "**": lambda left, right: left**right,
    "%": lambda left, right: left % right,
}


def _check_format(text: object) -> None:
    if isinstance(text, str) and _WIDTH.search(text):
        raise RenderError(f"the chat template formats with a width that is computed or too large: {text[:80]!r}")


def _guarded_format(wrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Check the text of `"...".format`, which the sandbox wraps wherever a template reaches for it."""

    def guarded(value: Any) -> Any:
        if getattr(value, "__name__", "") in {"format", "format_map"}:
            _check_format(getattr(value, "__self__", None))
        return wrap(value)

    return guarded


def _times(left: Any, right: Any) -> float:
    count, other = (left, right) if isinstance(left, int) else (right, left)
    return count * _length(other) if isinstance(count, int) else 0


def _guard(args: tuple[Any, ...]) -> None:
    """Check what a filter or a method is given: no number may say a huge width, no texts may multiply.

    A text has at most the characters of all the others together for each of its own: so much do `join` and `replace`.
    """
    texts = [each for each in args if isinstance(each, str)]
    if any(isinstance(each, int) and abs(each) > MOST_LENGTH for each in args):
        _check(float("inf"))
    for each in args:
        if isinstance(each, list | tuple):
            members = cast("list[object]", each)
            _check(sum(map(_length, members)) + len(members) * max(map(len, texts), default=0))
    if len(texts) > 1:
        longest, *others = sorted(map(len, texts), reverse=True)
        _check(longest * max(1, *others))


def _guarded(filter_: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        _guard((*args, *kwargs.values()))
        if filter_.__name__ == "do_format":
            _check_format(args[0])
        return filter_(*args, **kwargs)

    return cast("Any", _like(filter_, guarded))


def _like(given: Callable[..., Any], made: Callable[..., Any]) -> Callable[..., Any]:
    made.__dict__.update(getattr(given, "__dict__", {}))  # where jinja2 notes that it passes the environment first
    return made


def _guarded_call(call: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            _guard((owner, *args, *kwargs.values()))
        return call(context, obj, *args, **kwargs)

    return guarded

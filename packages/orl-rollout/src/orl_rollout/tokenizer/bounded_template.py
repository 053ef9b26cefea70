# pyright: reportPrivateUsage=false
"""A chat template with bounded time and memory: the sandbox of transformers, with every computed value measured.

A template is code from a checkpoint. jinja2's sandbox protects the machine, but not its time and memory. One rule does:
every computed value is measured at once, so every operation starts from small values. The result of most operations is
at most a few times their input. The few that multiply are checked before they run. Every operation and every block
takes a step of the render's budget. The module knows nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.sandbox import ImmutableSandboxedEnvironment
from orl_core.errors import RenderError, boundary

from orl_rollout.tokenizer.template_meter import MULTIPLYING, TEXTS, Meter

MOST_SOURCE = 1 << 18  # characters of a template
MOST_WORDS = 30_000  # of a template: the compiler takes kilobytes for each
LEAST_SHARE = 1 / 64  # of its budget that a render has after failures in a row, each of which halves it

_METER: ContextVar[Meter] = ContextVar("_METER")


class BoundedTemplate:
    """A compiled template. `render` may be called from several threads.

    Raises:
        RenderError: the text is no template, or too long.
    """

    def __init__(self, text: str) -> None:
        from transformers.utils import chat_template_utils

        if len(text) > MOST_SOURCE:
            raise RenderError(f"the chat template has {len(text):,} characters, more than {MOST_SOURCE:,}")
        with boundary(RenderError, "compiling the chat template"):
            # Not the text itself: a compiler without limits works out `9**9**9`.
            empty: Any = chat_template_utils._compile_jinja_template("")
            self.environment: Any = _bounded(empty.environment)
            if sum(1 for _ in self.environment.lex(text)) > MOST_WORDS:
                raise RenderError(f"the chat template has more than {MOST_WORDS:,} words of code")
            self._template: Any = self.environment.from_string(text)
        self._share = 1.0

    def render(self, **variables: Any) -> str:
        """Return the text that the template makes of `variables`.

        Raises:
            RenderError: it takes too long, or makes too much.
            jinja2.TemplateError: the template refuses.
        """
        previous = _METER.set(Meter(variables, self._share))
        try:
            text = self._template.render(**variables)
            self._share = 1.0
        except RenderError:  # certification tries a template a hundred times
            self._share = max(self._share / 2, LEAST_SHARE)
            raise
        finally:
            _METER.reset(previous)
        return text


def _measured(visit: Callable[..., None]) -> Callable[..., None]:
    def measured(self: CodeGenerator, node: Any, frame: Frame) -> None:
        if getattr(node, "ctx", "load") == "store":
            visit(self, node, frame)
            return
        self.write("environment.made(")
        visit(self, node, frame)
        self.write(")")

    return measured


class _Generator(CodeGenerator):
    """The compiler of jinja2, which writes a step into every block and measures displays, comparisons and slices."""

    visit_List = _measured(CodeGenerator.visit_List)  # noqa: N815
    visit_Tuple = _measured(CodeGenerator.visit_Tuple)  # noqa: N815
    visit_Dict = _measured(CodeGenerator.visit_Dict)  # noqa: N815
    visit_Compare = _measured(CodeGenerator.visit_Compare)  # noqa: N815
    visit_Getitem = _measured(CodeGenerator.visit_Getitem)  # noqa: N815

    @_measured
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("(markup_join if context.eval_ctx.autoescape else str_join)(")
        self.visit_Tuple(nodes.Tuple(node.nodes, "load"), frame)
        self.write(")")

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        body = list(nodes)
        self.writeline(f"environment.tick({_static(body)})")
        super().blockvisit(body, frame)


def _static(body: list[nodes.Node]) -> int:
    """Return how much text of its own a block prints."""
    printed = [child for node in body if isinstance(node, nodes.Output) for child in node.nodes]
    return sum(len(child.data) for child in printed if isinstance(child, nodes.TemplateData))


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, which measures operators and calls."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def tick(self, size: int) -> None:
        _METER.get().tick(size)

    def made(self, value: Any) -> Any:
        return _METER.get().made(value)

    def concat(self, parts: Iterable[str]) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Join what a block, a macro or the whole template prints."""
        printed = list(parts)
        meter = _METER.get()
        meter.allow(sum(map(len, printed)))
        return meter.made("".join(printed))

    def getitem(self, obj: Any, argument: Any) -> Any:
        _METER.get().tick()  # filters come here for each part of `attribute="a.b.c"`
        return super().getitem(obj, argument)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        meter = _METER.get()
        method = getattr(obj, "__wrapped__", obj)  # the sandbox wraps `format`
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        args = _listed(name, args)
        given = {key: value for key, value in kwargs.items() if key not in {"_loop_vars", "_block_vars"}}
        meter.made((args, given))
        if isinstance(owner, (*TEXTS, int)) or name in MULTIPLYING:
            meter.before(name, owner, args, given)
        return meter.made(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        meter = _METER.get()
        if operator == "*":
            meter.allow(_times(meter, left, right) + _times(meter, right, left))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            meter.allow(left.bit_length() * abs(right))
        elif operator == "%" and isinstance(left, TEXTS):
            meter.before("%", left, (right,), {})
        return meter.made(super().call_binop(context, operator, left, right))


def _times(meter: Meter, many: Any, count: Any) -> int:
    if not isinstance(count, int) or isinstance(many, int | float):
        return 0
    return (len(many) if isinstance(many, TEXTS) else meter.size(many)) * count


def _listed(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Read the members that `join` is given, because it makes more the more there are."""
    if name != "join" or not args or isinstance(args[0], TEXTS) or not isinstance(args[0], Iterable):
        return args
    return (list(_METER.get().made(args[0])), *args[1:])


def _bounded(sandbox: Any) -> _Environment:
    """Return the environment of transformers, with the same tags, filters and globals, all measured."""
    bounded: Any = sandbox.overlay(optimized=False, finalize=_printed)
    bounded.__class__ = _Environment
    bounded.filters = {name: _metered(name, each) for name, each in sandbox.filters.items()}
    bounded.tests = {name: _metered(name, each) for name, each in sandbox.tests.items()}
    bounded.globals = {name: each for name, each in sandbox.globals.items() if name != "lipsum"}  # random words
    bounded.globals["namespace"] = _namespace(sandbox.globals["namespace"])
    return bounded


def _printed(value: Any) -> Any:
    meter = _METER.get()
    meter.tick(meter.size(value))
    return value


def _metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter or test that is measured."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0  # jinja2 passes the context or the environment first
    name = "%" if name == "format" else name

    def measured(*args: Any, **kwargs: Any) -> Any:
        meter = _METER.get()
        given = _listed(name, args[first:])
        meter.made((given, kwargs))
        if name in MULTIPLYING:
            meter.before(name, given[0], given[1:], kwargs)
        return meter.made(function(*args[:first], *given, **kwargs))

    measured.__dict__.update(getattr(function, "__dict__", {}))  # what jinja2 passes first
    return measured


def _namespace(namespace: Any) -> type[Any]:
    class Namespace(namespace):
        def __repr__(self) -> str:  # without its values, which change after they are measured
            return "<Namespace>"

    return Namespace

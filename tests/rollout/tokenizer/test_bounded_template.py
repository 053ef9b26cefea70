"""Chat templates that would never end, or fill the memory: refused in one line, within a bounded time."""

from __future__ import annotations

import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jinja2
import pytest
from orl_core.errors import RenderError, boundary
from orl_core.render import Renderer
from orl_rollout.tokenizer import template_meter
from orl_rollout.tokenizer.bounded_template import BoundedTemplate
from orl_rollout.tokenizer.tokenizer import HFTokenizer
from transformers.utils import chat_template_utils

from tests.kit.quick import every_fifth
from tests.kit.tokenizers import build, template

LONG = "{% set s = 'a' * 1000000 %}"
ALIASED = "{% set n = namespace(x=['abc'], y=['abc']) %}{% for i in range(40) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
MANY = "{% set x = ['ab'] * 50000 %}"


def doubled(value: str) -> str:
    return "{% set n = namespace(s='a', x=['a'], i=9) %}{% for i in range(99) %}" + value + "{% endfor %}"


HOSTILE = {
    "range": "{% for i in range(10**12) %}{% endfor %}",
    "macro": "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive loop": "{% for a in [1] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "plus": doubled("{% set n.s = n.s + n.s %}"),
    "tilde": doubled("{% set n.s = n.s ~ n.s %}"),
    "percent of texts": doubled("{% set n.s = '%s%s' % (n.s, n.s) %}"),
    "format of texts": doubled("{% set n.s = '{0}{0}'.format(n.s) %}"),
    "format_map": doubled("{% set n.s = '{a}{a}'.format_map({'a': n.s}) %}"),
    "format filter": doubled("{% set n.s = '%s%s'|format(n.s, n.s) %}"),
    "block set": doubled("{% set t %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = t %}"),
    "lists": doubled("{% set n.x = (n.x + n.x)|sort %}"),
    "lazy lists": doubled("{% set n.x = (n.x + n.x)|map('upper')|list %}"),
    "numbers": doubled("{% set n.i = n.i * n.i %}"),
    "depth": "{% set n = namespace(x=()) %}{% for i in range(99999) %}{% set n.x = (n.x,) %}{% endfor %}",
    "aliases": ALIASED,
    "aliases in dicts": doubled("{% set n.x = dict(a=n.x, b=n.x) %}"),
    "aliased views": "{% set d = {'a': ['b' * 1000] * 900}.values() %}{% set x = [d] * 60000 %}",
    "arguments": LONG + "{% macro m() %}{{ varargs }}{% endmacro %}{{ m(s, s) }}",
    "joined texts": LONG + "{{ s ~ s ~ s }}",
    "variables": "".join(f"{{% set v{i} = '{i}\U0001f600' * 200000 %}}" for i in range(300)),
    "slices": LONG + "".join(f"{{% set v{i} = s[{i}:] %}}" for i in range(300)),
    "times": "{{ 'a' * 10**11 }}",
    "list": "{% set x = [0] * 10**9 %}",
    "bytes": "{{ 'a'.encode() * 10**10 }}",
    "power": "{{ 9**(9**9) }}",
    "percent": "{{ '%9999999999d' % 1 }}",
    "percent of a key": "{{ '%(a)1000000000d' % {'a': 1} }}",
    "percent of a precision": "{{ '%.1000000000f' % 1 }}",
    "percent of a width": "{{ '%*d' % (10**9, 1) }}",
    "percent of bytes": "{{ '%1000000000d'.encode() % 1 }}",
    "format": "{{ '{:9999999999}'.format('a') }}",
    "format of a width": "{{ '{:{}}'.format('a', 10**10) }}",
    "format of a brace": "{{ '{a[}]:999999999}'.format(a={'}': 1}) }}",
    "format of safe text": "{{ ('{:999999999}'|safe).format(1) }}",
    "center": "{{ 'a'|center(10**10) }}",
    "folded constant": "{{ 'a'|center(1000000000) }}",
    "tag's constant": "{% autoescape 'a'|center(1000000000) %}{% endautoescape %}",
    "ljust": "{{ 'a'.ljust(10**10) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "to_bytes": "{{ (5).to_bytes(10**9, 'big') }}",
    "encode": LONG + "{{ s.encode('punycode') }}",
    "translate": LONG + "{{ s.translate({97: s}) }}",
    "rfind": LONG + "{{ s.rfind('ab' ~ 'a' * 500000) }}",
    "trim": LONG + "{{ s|trim('b' * 900000 ~ 'a') }}",
    "output": "{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
    "output of its own text": "{% macro m() %}{% for i in range(99999) %}"
    + "text" * 9999
    + "{% endfor %}{% endmacro %}{{ m() }}",
    "filter block": LONG + "{% filter upper %}{% for i in range(9999) %}{{ s }}{% endfor %}{% endfilter %}",
    "join": LONG + "{{ ([s] * 99)|join }}",
    "join of a range": "{{ range(99999)|join('a' * 100000) }}",
    "join of lazy texts": LONG + "{{ range(99999)|map('default', s, true)|join }}",
    "join of a method": LONG + "{{ s.join(s) }}",
    "replace": LONG + "{{ s|replace('a', s) }}",
    "replace by name": LONG + "{{ s|replace(new=s, old='') }}",
    "replace of a text": LONG + "{{ s.replace('', s) }}",
    "tojson": "{{ [[1]]|tojson(indent=10**9) }}",
    "indent": LONG + "{{ ('a\n' * 100000)|indent(s) }}",
    "batch": "{{ [1]|batch(10**9, 0)|list }}",
    "slice": "{{ [1]|slice(10**9)|list }}",
    "pprint": "{{ {'k' * 9999: {'l' * 9999: [1] * 500}}|pprint }}",
    "wordwrap": "{{ ('a' * 500000)|wordwrap(1) }}",
    "striptags": "{{ ('<!---->' * 140000)|striptags }}",
    "urlize": "{{ ('www.a.com ' * 300)|urlize(target='t' * 900000) }}",
    "attributes": MANY + "{{ x|map(attribute='0." + "0." * 20000 + "0')|list }}",
    "sum": MANY + "{{ [x, x, x, x, x]|sum(start=[]) }}",
    "round": "{{ 5|round(10**9, 'ceil') }}",
    "strftime": "{{ strftime_now('%9999Y' * 1000) }}",
    "long number": "{{ ('f' * 900000)|int(base=16) }}",
    "lipsum": "{{ lipsum(n=100000, max=100000) }}",
    "long source": "{{ [" + "1," * 50000 + "] }}",
}
ENDLESS = {
    "loops": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
    "lists in loops": "{% set x = range(50000)|list %}{% for i in range(99999) %}{{ -1 in x }}{% endfor %}",
    "tests in filters": "{% set x = range(50000)|list %}{{ range(-50000, 0)|select('in', x)|list }}",
    "macros": "{% macro m(k) %}{{ m(k + 1) ~ m(k + 1) if k < 40 }}{% endmacro %}{{ m(0) }}",
}


def refusal(text: str) -> str:
    with pytest.raises(RenderError) as caught, boundary(RenderError, "applying the chat template"):
        BoundedTemplate(text).render(messages=[])
    return str(caught.value)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_template_that_makes_too_much_is_refused(text: str) -> None:
    message = refusal(text)
    assert len(message) < 500
    assert "MemoryError" not in message


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_template_without_end_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_meter, "MOST_STEPS", 50_000)
    monkeypatch.setattr(template_meter, "MOST_SECONDS", 0.5)
    assert "may never end" in refusal(text)


def test_checkpoint_with_a_template_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_meter, "MOST_STEPS", 20_000)
    broken = build(template("qwen3") + ENDLESS["filtered loops"])
    with pytest.raises(RenderError, match="may never end"):
        Renderer(HFTokenizer(broken))


def test_printed_namespace_does_not_show_what_it_holds() -> None:
    grown = doubled("{% set n.s = namespace(a=n.s, b=n.s) %}") + "{{ n.s }}"
    assert BoundedTemplate(grown).render() == "<Namespace>"


OURS = Path(__file__).parents[2] / "templates"
PUBLISHED = sorted(
    path.stem
    for folder in (OURS, *(Path(each) / "chat_templates" for each in find_spec("trl").submodule_search_locations))  # pyright: ignore
    for path in folder.glob("*.jinja")
)
CALL = {"type": "function", "id": "abcdefgh1", "function": {"name": "look", "arguments": {"where": "up", "far": 12.5}}}
SHORT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Où? <b>&amp;</b> 100% {of} \U0001f600"},
    {"role": "assistant", "content": "Here.", "reasoning_content": "Hm.\n", "thinking": "Hm.\n", "tool_calls": [CALL]},
    {"role": "tool", "name": "look", "tool_call_id": "abcdefgh1", "content": "The sky.\n"},
    {"role": "assistant", "content": "There."},
]
PLAIN = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Here."}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look.",
            "parameters": {"type": "object", "properties": {"where": {"type": "string", "enum": ["up", "down"]}}},
        },
    }
]


def shown(render: Any, messages: list[Any], tools: list[Any] | None) -> str:
    """Return a rendering, or the error."""
    given = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True}
    try:
        with boundary(RenderError, "rendering"):
            return render(**given, bos_token="<s>", eos_token="</s>", strftime_now=lambda _: "1 May 2024")
    except RenderError as exc:
        return f"{exc}"


@pytest.mark.parametrize("name", every_fifth(PUBLISHED))
def test_published_template_prints_what_transformers_print(name: str) -> None:
    text = template(name)
    plain, bounded = chat_template_utils._compile_jinja_template(text), BoundedTemplate(text)  # pyright: ignore[reportPrivateUsage]
    for messages in (SHORT, SHORT[1:], PLAIN, PLAIN[:1], PLAIN * 20):
        for tools in (None, TOOLS):
            assert shown(bounded.render, messages, tools) == shown(plain.render, messages, tools)


@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "gptoss"])
def test_long_conversation_fits_its_limits(name: str) -> None:
    messages = [SHORT[0], *([SHORT[1], {**SHORT[2], "content": ""}, SHORT[3]] * 266)]
    text = template(name)
    plain = chat_template_utils._compile_jinja_template(text)  # pyright: ignore[reportPrivateUsage]
    rendered = shown(BoundedTemplate(text).render, messages, TOOLS)
    assert rendered == shown(plain.render, messages, TOOLS)
    assert rendered.count("The sky.") == 266


def test_limits_grow_with_the_conversation() -> None:
    text = "{{ messages|tojson }}{% set all = messages|map(attribute='content')|join('\n\n') %}{{ all.split()|length }}"
    messages = [{"role": "tool", "content": f"{i} " * 40_000} for i in range(20)]
    expected = json.dumps(messages) + str(20 * 40_000)
    assert BoundedTemplate(text).render(messages=messages) == expected


EVERYTHING = """
{%- macro m(x) %}<{{ x }}{{ caller() if caller }}>{% endmacro %}
{%- for a in items if a > 1 %}{{ loop.index }}/{{ loop.length }}{{ m(a) }}{{ loop.last }}{{ loop.previtem }}
{%- else %}none{% endfor %}
{%- for key, value in pairs.items() %}{{ key ~ '=' ~ value ~ none }}{% endfor %}
{%- for node in tree recursive %}[{{ node.name }}{{ loop(node.below) if node.below }}]{% endfor %}
{%- set n = namespace(count=0) %}{% for c in 'text' %}{% set n.count = n.count + 1 %}{% if loop.index > 2 %}{% break %}
{%- endif %}{% endfor %}{{ n.count }} {{ pairs|tojson(indent=2) }} {{ items|join(', ') }} {{ 'a%s' % 'b' }}
{%- generation %}said{% endgeneration %}{{ '{} {}'.format(1, 2) }} {{ 'a\nb'|indent(2) }} {{ 7 % 2 }} {{ 3 * 'ab' }}
{%- for i in range(3) %}{{ i }}{% endfor %}
{{- items[::-1]|map('string')|list }} {{ '1234567 **aXb**'.replace('X', '-') }}
{%- call m('called') %}inside{% endcall %}{{ items + [4] }} {{ 2 ** 3 }}
{{- 'a b'.split() }} {{ '7654321*x*'|replace('x', '{:{')|center(25) }}
{%- filter upper %}loud{% endfilter %}{{ dict(a=1) }} {{ pairs|dictsort }} {{ items|length }} {{ absent is defined }}
"""


def test_template_prints_what_it_prints_without_limits() -> None:
    given: dict[str, Any] = {
        "items": [1, 2, 3],
        "pairs": {"a": 1, "b": "é"},
        "tree": [{"name": "x", "below": [{"name": "y"}]}],
    }
    expected = chat_template_utils._compile_jinja_template(EVERYTHING).render(**given)  # pyright: ignore[reportPrivateUsage]
    assert BoundedTemplate(EVERYTHING).render(**given) == expected


def test_refusal_of_a_template_is_its_own() -> None:
    with pytest.raises(jinja2.TemplateError, match="no such role"):
        BoundedTemplate("{{ raise_exception('no such role') }}").render(messages=[])


def test_render_that_waits_for_other_threads_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of rollouts renders its openings at once, and each thread waits for the interpreter most of the time."""
    monkeypatch.setattr(template_meter, "MOST_SECONDS", 0.1)

    def waits(_: str) -> str:
        time.sleep(0.2)
        return "today"

    assert BoundedTemplate("{{ strftime_now('%d') }}.").render(strftime_now=waits) == "today."

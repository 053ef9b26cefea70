"""Chat templates that would never end, or fill the memory: refused in one line, within a bounded time."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest
from orl_core.errors import RenderError, boundary
from orl_core.render import Renderer
from orl_rollout.bounded_template import BoundedTemplate
from orl_rollout.tokenizer import HFTokenizer
from transformers.utils import chat_template_utils

from tests.tokenizers import build, template

LONG = "{% set s = 'a' * 1000000 %}"
HOSTILE = {
    "range": "{% for i in range(10**12) %}{% endfor %}",
    "loops": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
    "macro": "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "plus": "{% set n = namespace(s='a') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "tilde": "{% set n = namespace(s='a') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "times": "{{ 'a' * 10**11 }}",
    "list": "{% set x = [0] * 10**9 %}",
    "power": "{{ 9**(9**9) }}",
    "percent": "{{ '%9999999999d' % 1 }}",
    "format": "{{ '{:9999999999}'.format('a') }}",
    "format of a width": "{{ '{:{}}'.format('a', 10**10) }}",
    "center": "{{ 'a'|center(10**10) }}",
    "ljust": "{{ 'a'.ljust(10**10) }}",
    "output": "{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
    "join": LONG + "{{ ([s] * 99)|join }}",
    "replace": LONG + "{{ s|replace('a', s) }}",
    "replace of a text": LONG + "{{ s.replace('a', s) }}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_template_without_end_is_refused(text: str) -> None:
    with pytest.raises(RenderError) as caught, boundary(RenderError, "applying the chat template"):
        BoundedTemplate(text).render(messages=[])
    assert len(str(caught.value)) < 500


def test_checkpoint_with_a_template_without_end_is_refused() -> None:
    broken = build(template("qwen3") + HOSTILE["filtered loops"])
    with pytest.raises(RenderError, match="may never end"):
        Renderer(HFTokenizer(broken))


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

"""A word in `chat_template_kwargs` that the chat template does not know is refused, if that can be seen."""

from __future__ import annotations

import pytest
from orl_core.errors import ConfigError

from tests.kit.tokenizers import made

COMPARED = "{% if level in ['low', 'high'] %}{{ level }}{% elif level == 'medium' %}{% elif level %}?{% endif %}"
LEVELS = {
    "compared": (COMPARED, "hihg"),
    "measured without regard to case": ("{% if level | lower == 'high' %}much{% endif %}", "HIHG"),
    "refused": ("{% if level not in ['low', 'high'] %}{{ raise_exception('no') }}{% endif %}{{ level }}", "hihg"),
    "one branch": ("{{ 'off' if level == 'none' else 'on' }}", "nnoe"),
    "with tools alone": ("{% if tools %}{{ 1 if level == 'high' else 2 }}{% endif %}", "hihg"),
}


@pytest.mark.parametrize("case", LEVELS)
def test_word_that_the_template_does_not_know_is_refused(case: str):
    text, word = LEVELS[case]
    with pytest.raises(ConfigError, match=word):
        made(text, variables={"level": word})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((COMPARED, word) for word in ("low", "medium", "high")),
        ("{% if level | lower == 'high' %}much{% endif %}", "HIGH"),
        (
            "Reasoning: {{ level }}{% if level == 'high' %}!{% endif %}",
            "hihg",
        ),  # no template tells it from another level
        ("{% if level %}on{% endif %} {{ 'a' if 'b' else 'c' }}", "yes"),
        ("{% for m in messages if m.role == 'tool' %}{{ level }}{% endfor %}", "rare"),
        ("{{ level or '' }}{% if level == 'high' %}!{% endif %}", ""),
        ("{{ 1 if level == 3 else 2 }}", 4),
    ],
)
def test_word_that_a_template_prints_or_knows_is_taken(text: str, value: object):
    assert made(text, variables={"level": value}).variables["level"] == value

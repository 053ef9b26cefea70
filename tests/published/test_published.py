"""A quick subset of `just models`: templates of the installed TRL, a few conversations each, under the same judge."""

from __future__ import annotations

from random import Random

import pytest
from orl_rollout.tokenizer.tokenizer import HFTokenizer

from tests.kit.quick import every_fifth
from tests.kit.tokenizers import build, published_template, template
from tests.published.conversations import Dialect, Shape, as_dicts, as_tools, play
from tests.published.judge import judge
from tests.published.sources import from_trl
from tests.published.vocabularies import case

TRL = {template.name: template for template in from_trl()}
pytestmark = pytest.mark.published
CERTIFIED = (
    *("qwen2_5", "qwen3", "qwen3_6", "glm4moe", "gptoss", "llama3_2", "deepseekv3", "nemotron_3_nano"),
    *("qwen3_instruct_2507", "llama3_1", "lfm2_2_5", "gemma4_v5", "qwen3_8"),
)


@pytest.mark.parametrize("name", every_fifth(CERTIFIED))
def test_openings_extensions_and_calls_are_those_of_transformers(name: str) -> None:
    verdict = judge(case(TRL[name], real=False), thinking=False, conversations=4, hostile=40)
    assert verdict.certified, verdict.reason
    assert verdict.wrong == ()
    assert verdict.openings
    assert verdict.calls


@pytest.mark.parametrize(
    ("name", "reason"),
    [("cohere", "alternate"), ("phi3", "does not print the tool messages"), ("llama3", "not made for tools")],
)
def test_templates_without_tools_are_refused_for_that(name: str, reason: str) -> None:
    verdict = judge(case(TRL[name], real=False), thinking=False, conversations=0, hostile=0)
    assert not verdict.certified
    assert reason in verdict.reason


@pytest.mark.parametrize("thinking", [None, False, True])
@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "qwen3_instruct_2507"])
def test_our_small_template_prints_what_the_published_one_does(name: str, thinking: bool | None) -> None:
    ours, theirs = (HFTokenizer(build(text), thinking=thinking) for text in (template(name), published_template(name)))
    for seed in range(30):
        played = play(Random(seed), Shape())
        messages = as_dicts(
            [*played.opening, *(message for step in played.steps for message in (step.action, *step.answers))],
            Dialect(as_text=False, named_ids=False),
        )
        for tools in (None, as_tools(played.tools)):
            shown = [
                one.apply_chat_template(messages, tools=tools, add_generation_prompt=True) for one in (ours, theirs)
            ]
            assert shown[0] == shown[1]

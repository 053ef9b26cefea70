"""The chat templates of models that were trained without tools, in fourteen published styles.

The texts are our own, in the styles' formats (tests/templates/plain); the control tokens are the published ones.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from orl_core.render import Renderer
from orl_rollout.tokenizer.tokenizer import HFTokenizer

from tests.kit.families import LLAMA_SPLIT
from tests.kit.tokenizers import Vocabulary, build, template

TEACHES = 'Tools:\n{tools}\nTo call one:\n<tool_call>\n{{"name": <name>, "arguments": <object>}}\n</tool_call>'


class Style(NamedTuple):
    """A style: its control tokens, its stop token, and how a user message and the model's next turn look in it.

    `follows` is the text between an action's stop token and the next action, with a place for the user's text.
    `system` says whether the template accepts a system message, `strips` whether it strips a user message.
    """

    special: tuple[str, ...]
    stop: str
    follows: str
    bos: str | None = None
    system: bool = True
    strips: bool = False


_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_PHI = ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
_LLAMA_2 = ("<unk>", "<s>", "</s>")
_LLAMA_3 = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_GRANITE = ("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>")
_GEMMA = ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>")
_DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")
_IM_TURN = "\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
_LLAMA_3_TURN = (
    "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
)
STYLES = {
    "chatml": Style(_CHATML, "<|im_end|>", _IM_TURN),
    "chatml_default": Style(_CHATML, "<|im_end|>", _IM_TURN),  # SmolLM2's
    "zephyr": Style(_LLAMA_2, "</s>", "\n<|user|>\n{}</s>\n<|assistant|>\n"),
    "phi3": Style(_PHI, "<|end|>", "\n<|user|>\n{}<|end|>\n<|assistant|>\n"),
    "vicuna": Style(_LLAMA_2, "</s>", "\nUSER: {}\nASSISTANT:", bos="<s>", strips=True),
    "alpaca": Style(_LLAMA_2, "</s>", "\n\n### Instruction:\n{}\n\n### Response:\n"),
    "openchat": Style(
        (*_LLAMA_2, "<|end_of_turn|>"),
        "<|end_of_turn|>",
        "GPT4 Correct User: {}<|end_of_turn|>GPT4 Correct Assistant:",
        bos="<s>",
    ),
    "llama3": Style(_LLAMA_3, "<|eot_id|>", _LLAMA_3_TURN, bos="<|begin_of_text|>", strips=True),
    "granite3": Style(
        _GRANITE,
        "<|end_of_text|>",
        "\n<|start_of_role|>user<|end_of_role|>{}<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    ),
    "llama2": Style(_LLAMA_2, "</s>", "<s>[INST] {} [/INST]", bos="<s>", strips=True),
    "mistral_v0_1": Style(_LLAMA_2, "</s>", " [INST] {} [/INST]", bos="<s>", system=False),
    "gemma1": Style(
        _GEMMA,
        "<end_of_turn>",
        "\n<start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n",
        bos="<bos>",
        system=False,
        strips=True,
    ),
    "starchat": Style(_PHI, "<|end|>", "\n<|user|>\n{}<|end|>\n<|assistant|>"),
    "deepseek_llm": Style(_DEEPSEEK, "<｜end▁of▁sentence｜>", "User: {}\n\nAssistant:", bos="<｜begin▁of▁sentence｜>"),
}


@cache
def plain_tokenizer(name: str, *added: str) -> HFTokenizer:
    """Return the tokenizer of a style; `added` are further tokens of its vocabulary."""
    style = STYLES[name]
    vocabulary = Vocabulary(
        special=style.special, added=added, eos=style.stop, bos=style.bos, split=LLAMA_SPLIT, normalized=False
    )
    return HFTokenizer(build(template(f"plain/{name}"), vocabulary=vocabulary))


@cache
def plain_renderer(name: str, *added: str) -> Renderer:
    """Return the renderer of a style whose calls are taught in Hermes' format."""
    return Renderer(plain_tokenizer(name, *added), system_prompt_template=TEACHES)

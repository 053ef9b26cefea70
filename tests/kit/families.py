"""The model families beyond ChatML's JSON calls: control tokens with their flags, stop tokens, templates.

Merges come from the seed in tests.kit.tokenizers, so the ids are not the published ones; the texts and the control
tokens are.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from orl_core.render import Renderer
from orl_rollout.tokenizer.tokenizer import HFTokenizer

from tests.kit.tokenizers import OURS, QWEN, Vocabulary, build, template

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orl_core.tools import ToolFormat

LLAMA_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
GLM = Vocabulary(
    special=(
        *("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>"),
        *("<|assistant|>", "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>"),
    ),
    added=(
        *("/nothink", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    eos="<|endoftext|>",
    stops=("<|endoftext|>", "<|user|>", "<|observation|>"),
    split=LLAMA_SPLIT,
    normalized=False,
)
LLAMA = Vocabulary(
    special=(
        *("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|start_header_id|>"),
        *("<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"),
    ),
    added=(),
    eos="<|eot_id|>",
    bos="<|begin_of_text|>",
    stops=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
    split=LLAMA_SPLIT,
    normalized=False,
)
MISTRAL = Vocabulary(
    special=(
        *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
        *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        *("[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
    ),
    added=(),
    eos="</s>",
    bos="<s>",
    stops=("</s>",),
    normalized=False,
)
MISTRAL_SPM = MISTRAL._replace(split="")
DEEPSEEK = Vocabulary(
    special=("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"),
    added=(
        *(
            "<｜User｜>",
            "<｜Assistant｜>",
            "<|EOT|>",
            "<think>",
            "</think>",
            "<｜fim▁hole｜>",
            "<｜tool▁calls▁begin｜>",
        ),
        *("<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜>"),
        *("<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<｜tool▁sep｜>"),
    ),
    eos="<｜end▁of▁sentence｜>",
    bos="<｜begin▁of▁sentence｜>",
    stops=("<｜end▁of▁sentence｜>",),
    split=LLAMA_SPLIT,
    normalized=False,
)
KIMI = Vocabulary(
    special=(
        *(
            "[BOS]",
            "[EOS]",
            "<|im_end|>",
            "<|im_user|>",
            "<|im_assistant|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
        ),
        *("[EOT]", "<|im_system|>", "<|im_middle|>", "[UNK]", "[PAD]"),
    ),
    added=(
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
        *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>", "</think>"),
    ),
    eos="<|im_end|>",
    bos="[BOS]",
    stops=("<|im_end|>", "[EOS]"),
    split=LLAMA_SPLIT,
    normalized=False,
)
GPT_OSS = Vocabulary(
    special=(
        *("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>"),
        *("<|message|>", "<|call|>", "<|endofprompt|>"),
    ),
    added=(),
    eos="<|return|>",
    bos="<|startoftext|>",
    stops=("<|return|>", "<|endoftext|>", "<|call|>"),
    split=LLAMA_SPLIT,
    normalized=False,
)
MINIMAX = Vocabulary(
    special=("]!p~[", "]~!b[", "]~b]", "[e~[", "]!d~["),
    added=("<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>", "<fim_prefix>"),
    eos="[e~[",
    bos="]~!b[",
    stops=("[e~[",),
    split=LLAMA_SPLIT,
    normalized=False,
)
KIMI_K3 = Vocabulary(
    special=(
        *("[BOS]", "[EOS]", "<|end_of_msg|>", "<|media_begin|>", "<|media_content|>", "<|media_end|>"),
        *("<|media_pad|>", "[UNK]", "[PAD]"),
    ),
    added=("<|open|>", "<|close|>", "<|sep|>"),
    eos="<|end_of_msg|>",
    bos="[BOS]",
    stops=("<|end_of_msg|>",),
    split=LLAMA_SPLIT,
    normalized=False,
)
MINIMAX_M3 = MINIMAX._replace(
    special=(*MINIMAX.special, "]<]minimax[>[", "]<]image[>[", "]<]video[>["),
    added=(*MINIMAX.added, "<mm:think>", "</mm:think>"),
)
MINIMAX_M1 = Vocabulary(
    special=("<begin_of_document>", "<end_of_document>", "<beginning_of_sentence>", "<end_of_sentence>"),
    added=(),
    eos="<end_of_sentence>",
    bos="<beginning_of_sentence>",
    stops=("<end_of_sentence>",),
    split=LLAMA_SPLIT,
    normalized=False,
)
HY3 = Vocabulary(
    special=tuple(
        f"<｜hy_{name}:opensource｜>"
        for name in ("begin_of_sentence", "end_of_sentence", "pad", "User", "Assistant", "eos")
    ),
    added=(
        *(
            f"<{slash}{name}:opensource>"
            for name in ("think", "tool_calls", "tool_call", "arg_key", "arg_value", "tool_responses", "tool_response")
            for slash in ("", "/")
        ),
        *("<tool_sep:opensource>", "<｜reasoning_mode:opensource｜>"),
    ),
    eos="<｜hy_eos:opensource｜>",
    bos="<｜hy_begin_of_sentence:opensource｜>",
    stops=("<｜hy_eos:opensource｜>",),
    split=LLAMA_SPLIT,
    normalized=False,
)

GEMMA4 = Vocabulary(
    special=(
        *("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>", "<|image>", "<image|>", "<|audio>"),
        *("<audio|>", "<|think|>"),
    ),
    added=(
        *("<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>'),
        *("<|channel>", "<channel|>"),
    ),
    eos="<eos>",
    bos="<bos>",
    stops=("<eos>", "<turn|>", "<|tool_response>"),
    split="",
)
SEED_OSS = Vocabulary(
    special=("<seed:bos>", "<seed:pad>", "<seed:eos>"),
    added=(
        *("<seed:think>", "</seed:think>", "<seed:cot_budget_reflect>", "</seed:cot_budget_reflect>"),
        *("<seed:tool_call>", "</seed:tool_call>"),
    ),
    eos="<seed:eos>",
    bos="<seed:bos>",
    stops=("<seed:eos>",),
    split=LLAMA_SPLIT,
    normalized=False,
)
OLMO3 = Vocabulary(
    special=("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>", "<|endofprompt|>"),
    added=("<functions>", "</functions>", "<function_calls>", "</function_calls>", "|||IP_ADDRESS|||"),
    eos="<|endoftext|>",
    stops=("<|im_end|>", "<|endoftext|>"),
    split=LLAMA_SPLIT,
    normalized=False,
)
COHERE = Vocabulary(
    special=("<PAD>", "<UNK>", "<BOS_TOKEN>", "<EOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    added=(
        *("<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|START_THINKING|>"),
        *("<|END_THINKING|>", "<|START_ACTION|>", "<|END_ACTION|>", "<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>"),
        *("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    eos="<|END_OF_TURN_TOKEN|>",
    bos="<BOS_TOKEN>",
    stops=("<|END_OF_TURN_TOKEN|>",),
    split=LLAMA_SPLIT,
)
LFM2 = Vocabulary(
    special=("<|pad|>", "<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    added=(
        *("<|tool_list_start|>", "<|tool_list_end|>", "<|tool_call_start|>", "<|tool_call_end|>"),
        *("<|tool_response_start|>", "<|tool_response_end|>", "<think>", "</think>"),
    ),
    eos="<|im_end|>",
    bos="<|startoftext|>",
    stops=("<|im_end|>",),
    split=LLAMA_SPLIT,
    normalized=False,
)


class Family(NamedTuple):
    """A published template with its vocabulary.

    `append_only`: the template itself keeps history as it was. `text_with_calls`: it prints text before calls in place.
    """

    template: str
    vocabulary: Vocabulary
    tool_format: ToolFormat
    thinking: bool = False
    user_turns: bool = True
    calls_per_action: int | None = None
    shows_tools: bool = True
    append_only: bool = True
    text_with_calls: bool = True


FAMILIES = {
    "qwen3_coder": Family("qwen3_coder", QWEN, "qwen3_coder"),
    "qwen3_5": Family("qwen3_5_nothink", QWEN, "qwen3_coder", append_only=False),
    "qwen3_5_think": Family("qwen3_5_think", QWEN, "qwen3_coder", thinking=True, append_only=False),
    "qwen3_6": Family("qwen3_6", QWEN, "qwen3_coder", append_only=False),
    "qwen3_8": Family("qwen3_8", QWEN, "qwen3_coder", append_only=False),
    "nemotron_3": Family("nemotron_3_nano", QWEN, "qwen3_coder", append_only=False),
    "nemotron_3_5_think": Family("nemotron_3_5_lightning", QWEN, "qwen3_coder", thinking=True, append_only=False),
    "glm4_5": Family("glm4moe", GLM, "glm45", append_only=False),
    "glm4_5_think": Family("glm4moe", GLM, "glm45", thinking=True, append_only=False),
    "glm4_7": Family("glm4_7", GLM, "glm45"),
    "glm4_7_think": Family("glm4_7", GLM, "glm45", thinking=True, append_only=False),
    "llama3_1": Family("llama3_1", LLAMA, "llama3", calls_per_action=1),
    "llama3_2": Family("llama3_2", LLAMA, "llama3", calls_per_action=1),
    "mistral_v0_3": Family("mistral_v0_3", MISTRAL_SPM, "mistral", user_turns=False),
    "mistral_nemo": Family("mistral_nemo", MISTRAL, "mistral", user_turns=False),
    "mistral_small_3_2": Family("mistral_small_3_2", MISTRAL, "mistral", user_turns=False),
    "ministral_3": Family("ministral_3", MISTRAL, "mistral"),
    "deepseek_v3": Family("deepseekv3", DEEPSEEK, "deepseek", thinking=True, shows_tools=False, append_only=False),
    "deepseek_v3_1": Family("deepseek_v3_1", DEEPSEEK, "deepseek", shows_tools=False),
    "deepseek_v3_1_think": Family(
        "deepseek_v3_1", DEEPSEEK, "deepseek", thinking=True, shows_tools=False, append_only=False
    ),
    "kimi_k2": Family("kimi_k2", KIMI, "kimi_k2"),
    "gpt_oss": Family("gptoss", GPT_OSS, "gpt_oss", calls_per_action=1, append_only=False),
    "minimax_m2": Family("minimax_m2", MINIMAX, "minimax", append_only=False),
    "kimi_k3": Family("kimi_k3", KIMI_K3, "kimi_k3", append_only=False),
    "kimi_k3_think": Family("kimi_k3", KIMI_K3, "kimi_k3", thinking=True),
    "minimax_m3": Family("minimax_m3", MINIMAX_M3, "minimax_m3"),
    "minimax_m1": Family("minimax_m1", MINIMAX_M1, "minimax_m1"),
    "hy3": Family("hy3", HY3, "hy3"),
    "hy3_think": Family("hy3", HY3, "hy3", thinking=True),
    "xlam": Family("xlam", QWEN, "json_array", append_only=False),
    "command_r7b": Family("command_r7b", COHERE, "cohere", append_only=False),
    "cohere2_moe": Family("cohere2_moe", COHERE, "cohere", thinking=True, append_only=False),
    "olmo3": Family("olmo3", OLMO3, "olmo3", append_only=False),
    "seed_oss": Family("seed_oss", SEED_OSS, "seed_oss"),
    "lfm2": Family("lfm2_v2", LFM2, "pythonic"),
    "lfm2_5": Family("lfm2_2_5_v2", LFM2, "lfm2_5", append_only=False),
    "gemma4": Family("gemma4_v5", GEMMA4, "gemma4", append_only=False, text_with_calls=False),
    "gemma4_think": Family("gemma4_v5", GEMMA4, "gemma4", thinking=True, append_only=False, text_with_calls=False),
}


def rows(names: Iterable[str] = FAMILIES) -> list[Any]:
    """Return the names as rows of a table: four of five are slow, and some need a published template."""
    found: list[Any] = []
    for index, name in enumerate(names):
        family = FAMILIES.get(name)
        ours = (OURS / f"{family.template if family else name}.jinja").exists()
        marks = [pytest.mark.slow] * bool(index % 5) + [pytest.mark.published] * (not ours)
        found.append(pytest.param(name, id=name, marks=marks))
    return found


@cache
def tokenizer(name: str) -> HFTokenizer:
    """The renderer's tokenizer for a family."""
    family = FAMILIES[name]
    hf = build(template(family.template), vocabulary=family.vocabulary)
    ids = hf.get_vocab()
    return HFTokenizer(hf, thinking=family.thinking, stop_ids=[ids[text] for text in family.vocabulary.stops])


@cache
def renderer(name: str) -> Renderer:
    """Return the family's renderer, which finds the tool format. A system prompt shows tools if needed."""
    family = FAMILIES[name]
    system = None if family.shows_tools else "The tools:\n{tools}"
    return Renderer(tokenizer(name), system_prompt_template=system)

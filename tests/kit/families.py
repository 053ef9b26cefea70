"""The model families beyond ChatML's JSON calls: control tokens with their flags, stop tokens, templates.

Merges come from the seed in tests.kit.tokenizers, so the ids are not the published ones; the texts and the control
tokens are.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import pytest
from orl_core.render import Renderer
from orl_core.tools import ToolFormat
from orl_rollout.tokenizer.tokenizer import HFTokenizer

from tests.kit.tokenizers import OURS, QWEN, Vocabulary, build, template

LLAMA_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def vocabulary_of(
    eos: str, *stops: str, bos: str | None = None, special: str = "", added: str = "", **fields: Any
) -> Vocabulary:
    """Return a vocabulary in which `eos` ends an action, or each of `stops`; other tokens are listed with blanks."""
    every = (*special.split(), eos, *stops, *([bos] if bos else ()))
    return Vocabulary(
        special=tuple(dict.fromkeys(token for token in every if token not in added.split())),
        added=tuple(added.split()),
        eos=eos,
        bos=bos,
        stops=stops or (eos,),
        **{"split": LLAMA_SPLIT, "normalized": False, **fields},
    )


GLM = vocabulary_of(
    *("<|endoftext|>", "<|endoftext|>", "<|user|>", "<|observation|>"),
    special="[MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|assistant|> <|begin_of_image|> <|end_of_image|>",
    added="/nothink <think> </think> <tool_call> </tool_call> <tool_response> </tool_response> "
    "<arg_key> </arg_key> <arg_value> </arg_value>",
)
LLAMA = vocabulary_of(
    *("<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
    bos="<|begin_of_text|>",
    special="<|reserved_special_token_0|> <|start_header_id|> <|end_header_id|> <|python_tag|>",
)
MISTRAL = vocabulary_of(
    "</s>",
    bos="<s>",
    special="<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] "
    "[TOOL_CALLS] [IMG] <pad> [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT] [ARGS] [CALL_ID] [THINK] [/THINK]",
    split=QWEN.split,
)
MISTRAL_SPM = MISTRAL._replace(split="")
DEEPSEEK = vocabulary_of(
    "<｜end▁of▁sentence｜>",
    bos="<｜begin▁of▁sentence｜>",
    special="<｜▁pad▁｜>",
    added="<｜User｜> <｜Assistant｜> <|EOT|> <think> </think> <｜fim▁hole｜> <｜tool▁calls▁begin｜> "
    "<｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> "
    "<｜tool▁outputs▁begin｜> <｜tool▁outputs▁end｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜> <｜tool▁sep｜>",
)
KIMI = vocabulary_of(
    *("<|im_end|>", "<|im_end|>", "[EOS]"),
    bos="[BOS]",
    special="[BOS] [EOS] <|im_user|> <|im_assistant|> <|start_header_id|> <|end_header_id|> [EOT] <|im_system|> "
    "<|im_middle|> [UNK] [PAD]",
    added="<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_argument_begin|> "
    "<|tool_call_end|> <think> </think>",
)
GPT_OSS = vocabulary_of(
    *("<|return|>", "<|return|>", "<|endoftext|>", "<|call|>"),
    bos="<|startoftext|>",
    special="<|constrain|> <|channel|> <|start|> <|end|> <|message|> <|endofprompt|>",
)
MINIMAX_ADDED = "<think> </think> <minimax:tool_call> </minimax:tool_call> <fim_prefix>"
MINIMAX = vocabulary_of("[e~[", bos="]~!b[", special="]!p~[ ]~b] ]!d~[", added=MINIMAX_ADDED)
GEMMA4 = vocabulary_of(
    *("<eos>", "<eos>", "<turn|>", "<|tool_response>"),
    bos="<bos>",
    special="<pad> <unk> <mask> <|turn> <|image> <image|> <|audio> <audio|> <|think|>",
    added='<|tool> <tool|> <|tool_call> <tool_call|> <|tool_response> <tool_response|> <|"|> <|channel> <channel|>',
    split="",
    normalized=True,
)
SEED_OSS = vocabulary_of(
    "<seed:eos>",
    bos="<seed:bos>",
    special="<seed:pad>",
    added="<seed:think> </seed:think> <seed:cot_budget_reflect> </seed:cot_budget_reflect> <seed:tool_call> "
    "</seed:tool_call>",
)
OLMO3 = vocabulary_of(
    *("<|endoftext|>", "<|im_end|>", "<|endoftext|>"),
    special="<|im_start|> <|pad|> <|endofprompt|>",
    added="<functions> </functions> <function_calls> </function_calls> |||IP_ADDRESS|||",
)
COHERE = vocabulary_of(
    "<|END_OF_TURN_TOKEN|>",
    bos="<BOS_TOKEN>",
    special="<PAD> <UNK> <EOS_TOKEN>",
    added="<|START_OF_TURN_TOKEN|> <|USER_TOKEN|> <|CHATBOT_TOKEN|> <|SYSTEM_TOKEN|> <|START_THINKING|> "
    "<|END_THINKING|> <|START_ACTION|> <|END_ACTION|> <|START_TOOL_RESULT|> <|END_TOOL_RESULT|> <|START_RESPONSE|> "
    "<|END_RESPONSE|> <|START_TEXT|> <|END_TEXT|>",
    normalized=True,
)
LFM2 = vocabulary_of(
    "<|im_end|>",
    bos="<|startoftext|>",
    special="<|pad|> <|endoftext|> <|im_start|>",
    added="<|tool_list_start|> <|tool_list_end|> <|tool_call_start|> <|tool_call_end|> <|tool_response_start|> "
    "<|tool_response_end|> <think> </think>",
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

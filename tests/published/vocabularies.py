"""A vocabulary for a published template: the real one where a package publishes it, else one with its control tokens.

Templates say which control strings they use but not which of them are added tokens, nor how an action ends. Both are
here for each family, as the checkpoints publish them. Merges of a seeded vocabulary come from tests.kit.tokenizers.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, NamedTuple

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.kit.families import DEEPSEEK, GLM, GPT_OSS, KIMI, LLAMA, MINIMAX, MISTRAL, vocabulary_of
from tests.kit.tokenizers import QWEN, QWEN25_ADDED, Vocabulary, build
from tests.published.sources import FOLDER, Published

# Control strings as the field writes them, and the tags that most vocabularies of reasoning models hold.
CONTROL = re.compile(
    r"<[|｜][^\s<>{}'\"|｜]{1,60}[|｜]?>|<[a-z_]{2,30}\|>|\[\|[a-z]+\|\]|</?(?:seed|minimax|atem|mm):\w+>|｜DSML｜|〈\|EOS\|〉"
)
TAG = re.compile(
    r"</?(?:think|tool_call|tool_response|tool_calls|tool_result|arg_key|arg_value|start_function_\w+|end_function_\w+|escape"
    r"|start_of_turn|end_of_turn|end_of_utterance|start_of_image|assistant|user|system|TOOLCALL|AVAILABLE_TOOLS|TOOL_RESPONSE)>"
)


SUFFIX = ":opensource"  # of every tag of Hy3: its template formats `{}` with it
_HY = tuple(f"<｜hy_{name}{SUFFIX}｜>" for name in ("User", "Assistant", "pad", "eos", "begin_of_sentence"))
# The first text that a template holds names its family. `bos` is printed by the template if it wants one.
FAMILIES: tuple[tuple[str, Vocabulary], ...] = (
    ("<|hy_", vocabulary_of("<|eos|>")),
    ("<｜hy_eos{}｜>", vocabulary_of(_HY[3], special=" ".join(_HY))),
    ("<｜hy_User｜>", vocabulary_of("<｜hy_place▁holder▁no▁2｜>", bos="<｜hy_begin▁of▁sentence｜>")),
    ("<|extra_0|>", vocabulary_of("<|eos|>", bos="<|startoftext|>")),
    ("]~b]", MINIMAX),
    ("<end_of_sentence>", vocabulary_of("<end_of_sentence>", special="<beginning_of_sentence> <begin_of_document>")),
    ("<|im_middle|>", KIMI),
    ("<|end_of_msg|>", vocabulary_of("<|end_of_msg|>", "[EOS]", bos="[BOS]")),
    ("<|channel|>", GPT_OSS),
    ("[gMASK]", GLM),
    ("<|observation|>", GLM),
    ("<|function_list|>", vocabulary_of("<|im_end|>", bos="<s>", special="</s>")),
    ("<|tool_call_start|>", vocabulary_of("<|im_end|>", bos="<|startoftext|>", special="<|endoftext|>")),
    ("<|tool_list_start|>", vocabulary_of("<|im_end|>", bos="<|startoftext|>", special="<|endoftext|>")),
    ("<|im_start|>", QWEN),
    ("<|start_header_id|>", LLAMA),
    ("<|header_start|>", vocabulary_of("<|eot|>", "<|end_of_text|>", "<|eom|>", bos="<|begin_of_text|>")),
    ("<｜start▁of▁sentence｜>", vocabulary_of("<｜end▁of▁sentence｜>")),
    ("<｜Assistant｜>", DEEPSEEK),
    ("<｜begin▁of▁sentence｜>", DEEPSEEK),
    ("[|endofturn|]", vocabulary_of("[|endofturn|]", bos="[BOS]")),
    ("[INST]", MISTRAL),
    ("<turn|>", vocabulary_of("<turn|>", "<|tool_response>", "<eos>", bos="<bos>", special='<|"|>')),
    ("<start_of_turn>", vocabulary_of("<eos>", "<end_of_turn>", bos="<bos>")),
    ("<|START_OF_TURN_TOKEN|>", vocabulary_of("<|END_OF_TURN_TOKEN|>", bos="<BOS_TOKEN>")),
    ("<|start_of_role|>", vocabulary_of("<|end_of_text|>")),
    ("<seed:", vocabulary_of("<seed:eos>", bos="<seed:bos>")),
    ("<|assistant_end|>", vocabulary_of("<|assistant_end|>", "</s>", bos="<s>")),
    ("<|tool:begin|>", vocabulary_of("<|flush|>", "<|end|>", "<|calls|>", bos="<|startoftext|>")),
    ("<|begin_assistant|>", vocabulary_of("<|end|>", bos="<s>", special="</s>")),
    ("<|tool_result|>", vocabulary_of("<|end|>", bos="<s>", special="</s>")),
    ("<|message_sep|>", vocabulary_of("</s>", "<|message_sep|>", bos="<s>")),
    ("〈|EOS|〉", vocabulary_of("〈|EOS|〉", "</assistant>")),
    ("<|role_end|>", vocabulary_of("<|role_end|>", "<|endoftext|>", bos="<|startoftext|>")),
    ("<TOOLCALL>", vocabulary_of("<SPECIAL_12>", bos="<s>", special="<SPECIAL_10> <SPECIAL_11>")),
    ("<|eot|>", vocabulary_of("<|eot|>", "<|eom|>", bos="<|begin_of_text|>")),
    ("<|EOT|>", vocabulary_of("<|EOT|>", bos="<s>")),
    ("<|end_of_sentence|>", vocabulary_of("</s>", "<|end_of_sentence|>", bos="<|begin_of_sentence|>")),
    ("<end_of_utterance>", vocabulary_of("<end_of_utterance>", bos="<|begin_of_text|>")),
    ("<|end|>", vocabulary_of("<|endoftext|>", "<|end|>", bos="<s>")),
    ("<_end>", vocabulary_of("<_end>", special="<_user> <_bot> <_system>")),
    ("<sep>", vocabulary_of("<|endoftext|>", "<sep>")),
    ("<|endoftext|>", vocabulary_of("<|endoftext|>")),
)
PLAIN = vocabulary_of("</s>", bos="<s>")
# The vocabulary that the checkpoints of these templates publish.
REAL: dict[str, str] = {
    "qwen3": r"(Qwen-)?[Qq]wen3($|-0.6B|-Coder|-Instruct|-Next|-VL|_instruct|_vl|coder)|.*QwQ-32B|.*r1-0528-qwen3",
    "qwen2_5": r".*[Qq]wen-?2[._]5|MiMo-VL|QvQ|marco-o1|qwenLong|XiYanSQL|fin-r1|tool-xlam_qwen|xlam_qwen",
    "llama3": r"llama3$|llama-3-instruct|fireworks|meetkai",
    "llama3_1": r"llama3[._]1|llama-3.1|meta-llama-Llama-3.1|toolace|xlam_llama",
    "llama3_2": r"llama3[._]2|meta-llama-Llama-3.2|llama-3.2",
    "gemma3": r"gemma3",
    "deepseek_v3": r"deepseek-?v3$|deepseek-ai-DeepSeek-V3.1|[Dd]eepseek-[Vv]3.1|deepseek-v3",
    "command_r_plus": r"cohere$|CohereForAI-c4ai-command-r-plus",
    "mistral_nemo": r"mistral-nemo|mistralai-Mistral-Nemo",
}


class Case(NamedTuple):
    """A published template with a vocabulary: transformers' own tokenizer, the ids that end an action, and `real`."""

    published: Published
    tokenizer: Any
    stop_ids: tuple[int, ...]
    real: bool


def case(published: Published, *, real: bool = True) -> Case:
    """Return the template with the vocabulary of its checkpoint if that is here, or with a seeded one."""
    family = next((one for needle, one in FAMILIES if needle in published.text), PLAIN)
    names = (published.name, *published.also)
    key = next((key for key, pattern in REAL.items() if any(re.match(pattern, name) for name in names)), "")
    hf = _real(key) if real and key and (FOLDER / "vocabularies" / key).exists() else None
    if hf is None or {family.eos, *family.stops}.isdisjoint(hf.get_added_vocab()):
        real, hf = False, build(published.text, vocabulary=_seeded(published, family))
    hf.chat_template = published.text
    ids = hf.get_vocab()
    return Case(published, hf, tuple(ids[text] for text in family.stops if text in ids), real)


def _seeded(published: Published, family: Vocabulary) -> Vocabulary:
    """Return the family's vocabulary with the control strings that this template prints."""
    text = published.text
    suffixed = {found.replace("{}", SUFFIX) for found in re.findall(r"<[^\s<>]+\{\}[^\s<>]*>", text)}
    found = {*CONTROL.findall(text), *suffixed}
    tags = set(TAG.findall(text)) | {tag.replace("<", "</", 1) for tag in TAG.findall(text) if "</" not in tag}
    if family is QWEN:
        family = QWEN._replace(added=QWEN25_ADDED[2:])
    special = tuple(dict.fromkeys((*family.special, *sorted(found))))
    added = tuple(dict.fromkeys((*family.added, *sorted(tag for tag in TAG.findall(text) if tag not in special))))
    return family._replace(special=special, added=tuple(tag for tag in added if tag not in special and tags))


def _real(name: str) -> Any:
    folder = FOLDER / "vocabularies" / name
    told = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    names = {key: _text(told[key]) for key in ("bos_token", "eos_token", "pad_token", "unk_token") if told.get(key)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(_json(name)), **names)


@cache
def _json(name: str) -> str:
    return (FOLDER / "vocabularies" / name / "tokenizer.json").read_text(encoding="utf-8")


def _text(token: Any) -> str:
    return token["content"] if isinstance(token, dict) else token

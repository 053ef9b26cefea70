"""Fast tokenizers from files that publish byte-pair ranks: tiktoken's `tiktoken.model` and Mistral's `tekken.json`.

A rank file lists the tokens, as bytes, in the order in which pairs merge. A fast tokenizer needs the pairs: all splits
of a token into two others, in the order of the tokens' ranks. tiktoken's algorithm uses only one of the splits, so the
others change nothing. Files are read as data. Python source is parsed, never run.
"""

from __future__ import annotations

import ast
import base64
import json
from typing import TYPE_CHECKING, Any

from orl_core.errors import RenderError, boundary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tokenizers import Tokenizer

_PATTERN = "pat_str"  # the attribute of a tiktoken tokenizer's class that cuts text before pairs merge
_FILLER = "<SPECIAL_{id}>"  # how Mistral's own library names ids that no special token has taken


def read_tiktoken(file: Path, code: Path | None, added: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer of a `tiktoken.model` such as Kimi's.

    `code` is the checkpoint's own Python file, which states the pattern; `added` is `added_tokens_decoder` of
    tokenizer_config.json. Ids between them that have no name are reserved.
    """
    if code is None:
        raise RenderError(f"{file} states no pattern: copy the checkpoint's tokenization_*.py there, it is not run")
    pattern = _pattern_in(code)
    with boundary(RenderError, f"reading {file}"):
        ranks = _tiktoken_ranks(file)
        named = {int(token_id): token for token_id, token in added.items()}
        tokens: list[tuple[str, bool]] = []
        for token_id in range(len(ranks), max(named, default=len(ranks) - 1) + 1):
            token = named.get(token_id, {"content": f"<|reserved_token_{token_id}|>", "special": True})
            tokens.append((token["content"], bool(token.get("special"))))
        return _tokenizer(ranks, 0, pattern, tokens)


def read_tekken(file: Path) -> Tokenizer:
    """Return the tokenizer of a `tekken.json` that lists its special tokens. They come first, then the ranks."""
    with boundary(RenderError, f"reading {file}"):
        tree: dict[str, Any] = json.loads(file.read_bytes())
        config = tree["config"]
        named = [entry["token_str"] for entry in sorted(tree["special_tokens"], key=lambda entry: entry["rank"])]
        number: int = config.get("default_num_special_tokens") or len(named)
        fillers = [_FILLER.format(id=token_id) for token_id in range(len(named), number)]
        size: int = config.get("default_vocab_size") or len(tree["vocab"]) + number
        listed = tree["vocab"][: size - number]
        ranks = {base64.b64decode(entry["token_bytes"], validate=True): entry["rank"] for entry in listed}
        return _tokenizer(ranks, number, config["pattern"], [(text, True) for text in (*named, *fillers)])


def _tiktoken_ranks(file: Path) -> dict[bytes, int]:
    lines = (line.split() for line in file.read_bytes().splitlines() if line)
    return {base64.b64decode(spelled, validate=True): int(rank) for spelled, rank in lines}


def _pattern_in(code: Path) -> str:
    """Return the text that a Python file gives to `pat_str`: a constant, or constants that are joined."""
    with boundary(RenderError, f"reading {code}"):
        for node in ast.walk(ast.parse(code.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and _PATTERN in [getattr(target, "id", "") for target in node.targets]:
                return _constant(node.value)
        raise RenderError(f"{code} does not state `{_PATTERN}`")


def _constant(value: ast.expr) -> str:
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(glue)), attr="join"), args=[parts]):
            return glue.join(ast.literal_eval(parts))
        case _:
            raise ValueError(f"`{_PATTERN}` is neither a text nor a join of texts: {ast.unparse(value)[:200]}")


def _tokenizer(ranks: Mapping[bytes, int], offset: int, pattern: str, added: Sequence[tuple[str, bool]]) -> Tokenizer:
    """Return a byte-level BPE tokenizer; `offset` is the id of rank 0, `added` are added tokens and special flags."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()
    spelled = {token: "".join([letters[byte] for byte in token]) for token in ranks}
    vocabulary = {spelled[token]: rank + offset for token, rank in ranks.items()}
    if offset:  # otherwise they get the ids that follow
        vocabulary |= {text: index for index, (text, _) in enumerate(added)}
    merges = [
        (spelled[token[:cut]], spelled[token[cut:]])
        for token in sorted(ranks, key=lambda token: ranks[token])
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    backend: Any = Tokenizer(models.BPE(vocabulary, merges, fuse_unk=False, ignore_merges=True))
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(text, special=special, normalized=False) for text, special in added])
    return backend

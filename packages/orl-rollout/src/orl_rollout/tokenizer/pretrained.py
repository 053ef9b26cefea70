"""The tokenizer that a checkpoint publishes, loaded from its files as data.

No code of a checkpoint runs, and nothing is asked on a terminal. A `tokenizer.json` is loaded unchanged. A checkpoint
that publishes only tiktoken's file is converted in memory: the file lists the tokens, as bytes, in the order in which
pairs merge. A fast tokenizer needs the pairs: all splits of a token into two others, in the order of the tokens' ranks.
tiktoken's algorithm uses only one of the splits, so the others change nothing. The module must not know chat templates,
only find them.
"""

from __future__ import annotations

import ast
import base64
import json
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants
from orl_core.errors import OrlError, RenderError, boundary
from orl_core.names import download_of

from orl_rollout.edge import interrupt
from orl_rollout.logs import logger_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

logger = logger_of("orl")

HUB_SECONDS = 12.0  # in which the hub is reached: a dead name server costs 5 s, each of its addresses a tenth
_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")
_PATTERN = "pat_str"  # the attribute of a tiktoken tokenizer's class that cuts text before pairs merge


def load_pretrained(path_or_name: str | Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a checkpoint: a folder, or a name on the model hub.

    Raises:
        RenderError: there is none that can be read as data.
    """
    name = str(path_or_name)
    _unreached.cache_clear()
    with boundary(RenderError, f"loading the tokenizer of `{name}`"):
        if _file(name, "tokenizer.json"):
            return _load("PreTrainedTokenizerFast", name)  # many classes rebuild their tokenizer from parts of the file
        config = read_object(name, "tokenizer_config.json")
        template = _chat_template(name) or config.get("chat_template")
        if ranks := _file(name, "tiktoken.model"):
            code = _code(name, config)
            backend = read_tiktoken(ranks, code, config.get("added_tokens_decoder", {}))
            names = {key: _text(config[key]) for key in _NAMES if config.get(key)}
            return _fast(name, backend, names, template, sorted_tools=_sorts_tools(name, code))
        try:
            with boundary(
                RenderError,
                f"loading the tokenizer of `{name}`, which lacks tokenizer.json and tiktoken.model",
            ):
                return _load("AutoTokenizer", name)
        except RenderError:
            check_hub(name, "tokenizer.json")
            raise


def check_hub(name: str, file: str) -> None:
    """Refuse a name of the model hub if the hub is away. Its own client tries for minutes.

    Raises:
        RenderError: it cannot be reached, and its cache here lacks `file`.
    """
    _unreached.cache_clear()
    if (host := _away(name)) and not _file(name, file):
        get = download_of(name, ", or once it is back run ", file)
        raise RenderError(f"{host} cannot be reached, and its cache here has no {file} of {name}. Name a folder{get}")


def _load(kind: str, name: str) -> PreTrainedTokenizerFast:
    """Load with a class of transformers."""
    import transformers

    here = bool(_away(name))
    return getattr(transformers, kind).from_pretrained(name, trust_remote_code=False, local_files_only=here)


def _away(name: str) -> str:
    """Return the host of a hub that is away, if `name` is no folder; else ""."""
    return "" if Path(name).is_dir() else _unreached(constants.ENDPOINT)


@cache
def _unreached(endpoint: str) -> str:
    """Return the host of `endpoint` if no connection to it opens, else "". A proxy is not tried. Kept for one load."""
    hub = urlsplit(endpoint)
    address = hub.hostname or "", hub.port or (80 if hub.scheme == "http" else 443)
    with suppress(OrlError, TimeoutError):
        if not {"http", "https", "all"} & getproxies().keys():
            opened = interrupt.on_thread(lambda: socket.create_connection(address, HUB_SECONDS / 10).close())
            interrupt.result_of(opened, HUB_SECONDS)  # a name may take longer to look up than to connect to
        return ""
    return address[0]


def _file(name: str, file: str) -> Path | None:
    """Return a checkpoint's file, downloaded if `name` is one of the hub; None if there is none or no way to it."""
    from transformers.utils import hub

    cached: Any = hub
    if Path(name).is_dir():
        return Path(name) / file if (Path(name) / file).is_file() else None
    path: str | None = cached.cached_file(
        name,
        file,
        local_files_only=bool(_away(name)),
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return Path(path) if path else None


def read_object(name: str, file: str) -> dict[str, Any]:
    """Return the JSON object in a checkpoint's file; empty if there is none.

    Raises:
        RenderError: the file holds something else.
    """
    path = _file(name, file)
    with boundary(RenderError, f"reading {path}"):
        tree: object = json.loads(path.read_text(encoding="utf-8")) if path else {}
    if not isinstance(tree, dict):
        raise RenderError(f"{path}: expected a JSON object")
    return cast("dict[str, Any]", tree)


def _code(name: str, config: dict[str, Any]) -> Path | None:
    """Return the Python file that tokenizer_config.json names; it is read, never run."""
    named: Any = config.get("auto_map", {}).get("AutoTokenizer")
    listed = cast("list[Any]", named if isinstance(named, list) else [named])
    first = next(iter(listed), None)
    if not isinstance(first, str) or "--" in first:
        return None
    return _file(name, f"{first.split('.', maxsplit=1)[0]}.py")


def _text(token: Any) -> str:
    """Return the text of a special token as tokenizer_config.json writes it."""
    return token if isinstance(token, str) else token["content"]


def _sorts_tools(name: str, code: Path | None) -> bool:
    """Return whether the checkpoint's own code sorts the tools' keys, as Kimi K2's does.

    Kimi K2.5's code also writes them as TypeScript. Without that, its template writes JSON.
    """
    text = code.read_text(encoding="utf-8") if code else ""
    if "tools_ts_str" in text:
        logger.warning("%s: its own code shows the tools as TypeScript, orl shows them as JSON", name)
    return "deep_sort_dict" in text


def _fast(
    name: str, backend: Any, names: dict[str, str], template: str | None, *, sorted_tools: bool = False
) -> PreTrainedTokenizerFast:
    """Wrap a converted backend as transformers does. `sorted_tools` is saved with the tokenizer."""
    import transformers

    known = backend.get_vocab()
    special: dict[str, Any] = {key: text for key, text in names.items() if text in known}
    more: dict[str, Any] = {"sorted_tools": True} if sorted_tools else {}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special, **more)
    tokenizer.name_or_path = name
    tokenizer.chat_template = template
    return tokenizer


def _chat_template(name: str) -> str | None:
    """Return the template in a file of its own."""
    if file := _file(name, "chat_template.jinja"):
        return file.read_text(encoding="utf-8")
    if file := _file(name, "chat_template.json"):
        return json.loads(file.read_text(encoding="utf-8")).get("chat_template")
    return None


def read_tiktoken(file: Path, code: Path | None, added: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer of a `tiktoken.model` such as Kimi's.

    `code` is the checkpoint's own Python file, which states the pattern; `added` is `added_tokens_decoder` of
    tokenizer_config.json. Ids between them that have no name are reserved.
    """
    if code is None:
        raise RenderError(f"{file} states no pattern: copy the checkpoint's tokenization_*.py there, it is not run")
    pattern = _pattern_in(code)
    with boundary(RenderError, f"reading {file}"):
        lines = (line.split() for line in file.read_bytes().splitlines() if line)
        ranks = {base64.b64decode(spelled, validate=True): int(rank) for spelled, rank in lines}
        named = {int(token_id): token for token_id, token in added.items()}
        tokens: list[tuple[str, bool]] = []
        for token_id in range(len(ranks), max(named, default=len(ranks) - 1) + 1):
            token = named.get(token_id, {"content": f"<|reserved_token_{token_id}|>", "special": True})
            tokens.append((token["content"], bool(token.get("special"))))
        return _tokenizer(ranks, pattern, tokens)


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


def _tokenizer(ranks: Mapping[bytes, int], pattern: str, added: Sequence[tuple[str, bool]]) -> Tokenizer:
    """Return a byte-level BPE tokenizer; `added` are added tokens and special flags, which get the ids that follow."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()
    spelled = {token: "".join([letters[byte] for byte in token]) for token in ranks}
    vocabulary = {spelled[token]: rank for token, rank in ranks.items()}
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

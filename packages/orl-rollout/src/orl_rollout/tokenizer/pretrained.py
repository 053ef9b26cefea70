"""The tokenizer that a checkpoint publishes, loaded from its files as data.

No code of a checkpoint runs, and nothing is asked on a terminal. A checkpoint with a `tokenizer.json` is loaded by
transformers and then compared with that file, because transformers rebuilds some tokenizers from their parts. One that
publishes only tiktoken's or Mistral's file is converted in memory. It must not know chat templates, only find them.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, cast

from orl_core.errors import RenderError, boundary
from orl_core.render.certify import BENIGN

from orl_rollout.tokenizer.rank_files import read_tekken, read_tiktoken

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

from orl_rollout.logs import logger_of

logger = logger_of("orl")

_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")
_TEKKEN_NAMES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
# Texts that normalisers and pre-tokenizers treat differently, beside those of the certificate: ligatures, full-width
# letters and digits, letters with their marks apart, other scripts' digits, contractions, white space, runs of signs.
_PROBES = (
    *BENIGN,
    *("\ufb01 \u00bd \uff21\uff11 A\u030a \u212b", "\uff11\uff12\uff13\uff14 \u0663\u0664\u0665 \u096a\u096b"),
    *("I'LL don't we'Re o\u2019clock", "a  b   c    d", "\u3000\u2003x\u0085y\x1cz", "=====----++++"),
    *("camelCase HTTPServer XMLHttp", "a_b-c/d.e", "\t\t\tif x:\n\t\t\t\treturn 0\r\n"),
    *("\u0e44\u0e17\u0e22", "\u0939\u093f\u0928\u094d\u0926\u0940", "\u10e5\u10d0\u10e0\u10d7"),
)
_SAMPLES = 2000  # texts of the vocabulary that are tried


def load_pretrained(path_or_name: str | Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a checkpoint: a folder, or a name on the model hub.

    Raises:
        RenderError: there is none that can be read as data, or transformers changes what it encodes.
    """
    name = str(path_or_name)
    with boundary(RenderError, f"loading the tokenizer of `{name}`"):
        if published := _file(name, "tokenizer.json"):
            loaded = _from_json(name)
            check_unchanged(loaded, published)
            return loaded
        config = _config(name)
        template = _chat_template(name) or config.get("chat_template")
        if ranks := _file(name, "tiktoken.model"):
            code = _code(name, config)
            backend = read_tiktoken(ranks, code, config.get("added_tokens_decoder", {}))
            names = {key: _text(config[key]) for key in _NAMES if config.get(key)}
            return _fast(name, backend, names, template, sorted_tools=_sorts_tools(name, code))
        if ranks := _file(name, "tekken.json"):
            return _fast(name, read_tekken(ranks), _TEKKEN_NAMES, template or _written_template(ranks))
        try:
            return _auto(name)
        except RenderError as error:
            raise RenderError(f"{error}{_help(name)}") from error


def check_unchanged(tokenizer: Any, published: Path) -> None:
    """Refuse a tokenizer that encodes or decodes a text otherwise than the checkpoint's `tokenizer.json`.

    Added tokens that only the checkpoint's other files name are no difference.

    Raises:
        RenderError: names the text and both results.
    """
    from tokenizers import Tokenizer

    ours, theirs = tokenizer.backend_tokenizer, Tokenizer.from_file(str(published))
    kind = type(tokenizer).__name__
    found = _unlike_added(ours, theirs) or _unlike_vocabulary(ours, theirs) or _unlike_text(ours, theirs)
    if found:
        raise RenderError(
            f"{published}: transformers loads it as {kind}, which rebuilds it differently: {found}. The ids would not "
            "be the published ones. Set `tokenizer_class` to `PreTrainedTokenizerFast` in tokenizer_config.json"
        )


def _unlike_added(ours: Any, theirs: Any) -> str:
    """Name the first added token of `theirs` that `ours` lacks, or finds in a text by other rules."""
    known = ours.get_added_tokens_decoder()
    for token_id, token in theirs.get_added_tokens_decoder().items():
        other = known.get(token_id)
        if other is None or _rules(other) != _rules(token):
            return f"added token {token_id} is {token!r} in the file and {other!r} when loaded"
    return ""


def _rules(token: Any) -> tuple[Any, ...]:
    return token.content, token.lstrip, token.rstrip, token.single_word, token.normalized


def _unlike_vocabulary(ours: Any, theirs: Any) -> str:
    """Name the first token of `theirs` that has another id in `ours`."""
    known: dict[str, int] = ours.get_vocab()
    for text, token_id in theirs.get_vocab().items():
        if known.get(text) != token_id:
            return f"token {text!r} has id {token_id} in the file and {known.get(text)} when loaded"
    return ""


def _unlike_text(ours: Any, theirs: Any) -> str:
    """Name the first probe that the two encode or decode differently."""
    ids = sorted(theirs.get_vocab().values())
    random = Random(0)  # noqa: S311
    drawn = [theirs.decode(random.choices(ids, k=random.randint(1, 4))) for _ in range(_SAMPLES)]
    added = [f"a {token.content}\n{token.content}b" for token in theirs.get_added_tokens_decoder().values()]
    for text in (*_PROBES, *drawn, *added[:_SAMPLES]):
        shown = [backend.encode(text, add_special_tokens=False).ids for backend in (ours, theirs)]
        if shown[0] != shown[1]:
            return f"{text!r} becomes {shown[0]}, and {shown[1]} by the file"
        back = [backend.decode(shown[0], skip_special_tokens=False) for backend in (ours, theirs)]
        if back[0] != back[1]:
            return f"{shown[0]} comes back as {back[0]!r}, and as {back[1]!r} by the file"
    return ""


def _from_json(name: str) -> PreTrainedTokenizerFast:
    """Load a checkpoint with a `tokenizer.json`: by the class that it names, where that is transformers' own.

    Where Mistral's file stands beside it, transformers would prefer Mistral's library, which is no fast tokenizer.
    """
    import transformers

    if "AutoTokenizer" not in _config(name).get("auto_map", {}) and not _file(name, "tekken.json"):
        loaded = _auto(name)
        if loaded.is_fast:
            return loaded
    fast: Any = transformers.PreTrainedTokenizerFast
    return fast.from_pretrained(name, trust_remote_code=False)


def _auto(name: str) -> Any:
    """Load by transformers' own choice of a class."""
    import transformers

    auto: Any = transformers.AutoTokenizer
    with boundary(RenderError, f"loading the tokenizer of `{name}`"):
        return auto.from_pretrained(name, trust_remote_code=False)


def _help(name: str) -> str:
    """Say what helps where a folder's tokenizer cannot be loaded."""
    if not Path(name).is_dir():
        return ""
    there = [file.name for file in sorted(Path(name).iterdir()) if "token" in file.name or file.suffix == ".model"]
    if not there:
        return f" ({name} holds no tokenizer: copy tokenizer.json and tokenizer_config.json of the model there)"
    return (
        f" ({name} holds {', '.join(there)}; orl reads tokenizer.json, tiktoken.model and tekken.json: convert the "
        "tokenizer with `AutoTokenizer.from_pretrained(...).save_pretrained(...)` where its own library is installed)"
    )


def _file(name: str, file: str) -> Path | None:
    """Return a checkpoint's file, fetched where `name` is a hub's; None where there is none or no way to it."""
    from transformers.utils import hub

    cached: Any = hub
    if Path(name).is_dir():
        return Path(name) / file if (Path(name) / file).is_file() else None
    found: str | None = cached.cached_file(
        name,
        file,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return Path(found) if found else None


def _config(name: str) -> dict[str, Any]:
    """Return tokenizer_config.json; empty where there is none."""
    file = _file(name, "tokenizer_config.json")
    tree: object = json.loads(file.read_text(encoding="utf-8")) if file else {}
    if not isinstance(tree, dict):
        raise RenderError(f"{file}: expected a JSON object")
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
    """Return whether the checkpoint's own code sorts the keys of the tools before its template sees them, as Kimi K2's.

    Kimi K2.5's code writes them as TypeScript besides. Its template writes JSON where nobody does that.
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


def _written_template(ranks: Path) -> str | None:
    """Return the template that Mistral's library writes for a `tekken.json`; None where it is not installed."""
    try:
        from mistral_common.integrations.chat_templates import chat_templates
    except ImportError:
        return None
    return chat_templates.convert_tokenizer_to_chat_template(ranks)


def _chat_template(name: str) -> str | None:
    """Return the template that stands in a file of its own."""
    if file := _file(name, "chat_template.jinja"):
        return file.read_text(encoding="utf-8")
    if file := _file(name, "chat_template.json"):
        return json.loads(file.read_text(encoding="utf-8")).get("chat_template")
    return None

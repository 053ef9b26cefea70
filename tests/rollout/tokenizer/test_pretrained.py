"""Tokenizers of checkpoints, read as data: converted files encode as their own libraries do.

The vocabularies are small and made from a seed, in the published files' formats.
"""

from __future__ import annotations

import json
import socket
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from orl_core.errors import RenderError
from orl_core.render import Renderer
from orl_core.render.certify import BENIGN
from orl_rollout.tokenizer.pretrained import check_hub, load_pretrained, read_tiktoken
from orl_rollout.tokenizer.tokenizer import HFTokenizer, load_tokenizer
from tokenizers import Tokenizer, pre_tokenizers

from tests.kit.checkpoints import PATTERNS, kimi, named, ranks
from tests.kit.tokenizers import build, template

TEXTS = st.text() | st.text(alphabet="aA e'stl09 \t\n\r=-漢字éſ\u3000") | st.sampled_from(BENIGN)


@cache
def reference() -> tiktoken.Encoding:
    special = {text: token_id for token_id, text in named().items()}
    return tiktoken.Encoding("test", pat_str="|".join(PATTERNS), mergeable_ranks=ranks(), special_tokens=special)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = kimi(tmp_path_factory.mktemp("kimi"))
    added = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    return read_tiktoken(folder / "tiktoken.model", folder / "tokenization_kimi.py", added)


@given(text=TEXTS)
def test_a_converted_tokenizer_encodes_as_tiktoken_does(converted: Any, text: str) -> None:
    ids = converted.encode(text, add_special_tokens=False).ids
    assert ids == reference().encode(text, allowed_special="all")
    assert converted.decode(ids, skip_special_tokens=False) == reference().decode(ids) == text


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> int:
    """The port of a hub that is away. Its cache is empty."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("NO_PROXY", "localhost")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return port


def test_hub_that_is_away_is_named_in_one_line(closed: int, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(RenderError, match=r"127\.0\.0\.1 cannot be reached.* `hf download Nobody/Model") as refused:
        load_tokenizer("Nobody/Model")
    assert "\n" not in str(refused.value)
    assert capfd.readouterr() == ("", "")
    with socket.create_server(("127.0.0.1", closed)):
        check_hub("Nobody/Model", "config.json")  # it is back


@pytest.mark.usefixtures("closed")
def test_cached_tokenizer_of_two_files_loads_offline(tmp_path: Path) -> None:
    folder = tmp_path / "models--Nobody--Model/snapshots/main"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "vocab.json").write_text('{"a": 0}')
    (folder / "merges.txt").write_text("")
    assert load_pretrained("Nobody/Model").get_vocab()["a"] == 0


def test_its_added_tokens_have_their_published_ids(converted: Any) -> None:
    for token_id, text in named().items():
        assert converted.encode(f"a{text}b", add_special_tokens=False).ids[1:-1] == [token_id]
    first = len(ranks())
    assert converted.id_to_token(first + 4) == f"<|reserved_token_{first + 4}|>"


def test_a_kimi_checkpoint_is_certified_and_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on the terminal"))
    tok = load_tokenizer(kimi(tmp_path))
    assert Renderer(tok).tool_format == "kimi_k2"
    tools = [{"type": "function", "function": {"name": "look", "description": "Look."}}]
    user = [{"role": "user", "content": "Hi."}]
    shown = tok.apply_chat_template(user, tools=tools, add_generation_prompt=True)
    assert shown.index('"description"') < shown.index('"name"') < shown.index('"type"')
    load_pretrained(tmp_path).save_pretrained(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert again.apply_chat_template(user, tools=tools, add_generation_prompt=True) == shown
    assert again.encode_joint(shown) == tok.encode_joint(shown)


def test_tokenizer_json_wins_over_other_files(tmp_path: Path) -> None:
    build(template("qwen3")).save_pretrained(kimi(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "mistral"}')
    assert load_pretrained(tmp_path).is_fast
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    auto = {"auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}, "tokenizer_class": "Tokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | auto))
    assert HFTokenizer(load_pretrained(tmp_path)).encode(["a"])


def rebuilt(folder: Path, change: Any) -> Path:
    """Save a checkpoint that names a class which builds its tokenizer anew; `change` makes the file differ from it."""
    hf = build(template("qwen3"))
    change(hf.backend_tokenizer)
    hf.save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "Qwen2Tokenizer"}))
    return folder


def cut(backend: Any) -> None:
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)


def plain(backend: Any) -> None:
    backend.normalizer = None


@pytest.fixture(scope="module", params=[cut, plain])
def of_file_and_loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = rebuilt(tmp_path_factory.mktemp("checkpoint"), request.param)
    return Tokenizer.from_file(str(folder / "tokenizer.json")), load_pretrained(folder)


@given(text=TEXTS)
def test_ids_are_those_of_tokenizer_json(of_file_and_loaded: tuple[Any, Any], text: str) -> None:
    published, loaded = of_file_and_loaded
    assert loaded.encode(text, add_special_tokens=False) == published.encode(text, add_special_tokens=False).ids


BROKEN = {
    "no code": ("tokenization_kimi.py", None, r"tiktoken\.model"),
    "no pattern": ("tokenization_kimi.py", "x = 1", "pat_str"),
    "a pattern that is worked out": ("tokenization_kimi.py", "pat_str = make()", "pat_str"),
    "no Python": ("tokenization_kimi.py", "pat_str = (", r"tokenization_kimi\.py"),
    "no base64": ("tiktoken.model", "!!! 0", r"tiktoken\.model"),
    "no object": ("tokenizer_config.json", "[]", r"tokenizer_config\.json"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_files_that_cannot_be_read_are_named(case: str, tmp_path: Path) -> None:
    name, text, subject = BROKEN[case]
    file = kimi(tmp_path) / name
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(RenderError, match=subject):
        load_tokenizer(tmp_path)


def test_folder_without_tokenizer_names_the_files(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)

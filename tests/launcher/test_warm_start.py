"""`orl warm-start` from each of its sources, and what it refuses before it trains."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from orl_core import Action, Message, Task, ToolCall, to_data
from orl_core.task import PLAIN
from orl_core.trajectory import RolloutSpec
from orl_launcher.episodes import Chat, episode_of
from orl_launcher.main import main
from orl_local.warm_start import recipe
from orl_rollout.episodes.journal import Journal, read_journal
from orl_rollout.run_folder.checkpoint import checkpoint_in

from tests.kit.configs import LOCAL
from tests.kit.tokenizers import build, renderer_of, template, tokenizer
from tests.local.checkpoints import weights_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
Capture = pytest.CaptureFixture[str]
PLAYERS = "tests.launcher.test_warm_start"
CALL = {"type": "function", "function": {"name": "guess", "arguments": '{"number": 7}'}}
TOOL = {"type": "function", "function": {"name": "guess", "description": "", "parameters": {"type": "object"}}}
CHAT = {
    "messages": [
        {"role": "user", "content": "Find it."},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]},
        {"role": "tool", "content": "higher"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
    ],
    "tools": [TOOL],
}


def halves(messages: Sequence[Message]) -> Action:
    """Win each game."""
    low, high = map(int, re.findall(r"(\d+) to (\d+)", " ".join(message.text for message in messages))[-1])
    return Action(text="Take the middle.", calls=(ToolCall(name="guess", arguments={"number": (low + high) // 2}),))


def loses(messages: Sequence[Message]) -> Any:
    """Lose each game: with a text at first, then with a call of a number that is in no range."""
    return "I think." if len(messages) == 1 else ("guess", {"number": 99})


def raises(messages: Sequence[Message]) -> Any:
    raise LookupError("no such move")


def answers_badly(messages: Sequence[Message]) -> Any:
    return 7


@pytest.fixture
def words(guess_number: str, model: str) -> list[str]:
    served = ["--set", f"environments.playground/GuessNumber.base_url={guess_number}", "--name", "warm"]
    wide = "--set rollout.turn_tokens=128 --set rollout.context_tokens=4096 --set eval.max_tasks=2"
    size = "--steps 2 --batch-size 4 --lr 1e-3"
    return ["warm-start", "--config", LOCAL, "--model", model, *served, *wide.split(), *size.split()]


@pytest.mark.slow
def test_a_player_teaches_the_model(words: list[str], model: str, capsys: Capture) -> None:
    assert main([*words, "--player", f"{PLAYERS}:halves", "--min-reward", "1"]) == 0
    run = Path("runs/warm")
    assert f"rollout --config {LOCAL} --model {run}" in capsys.readouterr().out
    figures = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert (figures["episodes"], figures["rows"], figures["held_out_episodes"], figures["steps"]) == (8, 7, 1, 2)
    entries = [*read_journal(run)]
    assert len(entries) == 8
    assert all(entry.success for entry in entries)
    first = entries[0].trajectory.turns[0]
    assert tokenizer("qwen3_instruct_2507").decode(first.action_ids).startswith("Take the middle.\n<tool_call>")
    found = checkpoint_in(run / "checkpoint")
    assert found is not None
    assert found.format == "hf"
    before, after = weights_of(Path(model)), weights_of(run / "checkpoint")
    assert any(not before[name].equal(after[name]) for name in before)
    again = [*words, "--name", "second", "--model", "runs/warm"]
    assert main([*again, "--journal", "runs/warm", "--min-reward", "1"]) == 0
    assert json.loads(Path("runs/second/summary.json").read_text(encoding="utf-8"))["episodes"] == 8


def test_rows_teach_the_model(words: list[str]) -> None:
    Path("chats.jsonl").write_text(f"{json.dumps(CHAT)}\n" * 3, encoding="utf-8")
    assert main([*words, "--rows", "chats.jsonl"]) == 0
    assert json.loads(Path("runs/warm/summary.json").read_text(encoding="utf-8"))["rows"] == 2


@pytest.mark.parametrize(
    ("more", "code", "subject"),
    [
        (["--player", f"{PLAYERS}:raises"], 1, "no such move"),
        (["--player", f"{PLAYERS}:answers_badly"], 1, "it returned 7"),
        (["--player", f"{PLAYERS}:loses", "--min-reward", "1"], 1, "0 of 8 episodes"),
        (["--player", f"{PLAYERS}:missing"], 1, "missing"),
        (["--player", "no_module"], 1, "module:function"),
        (["--rows", "chats.jsonl", "--min-reward", "1"], 2, "--min-reward"),
        (["--lr", "0", "--player", f"{PLAYERS}:halves"], 2, "--lr"),
        (["--journal", "elsewhere"], 1, "elsewhere: no journal"),
        ([], 2, "--player"),
    ],
)
def test_bad_input_is_one_line(words: list[str], capsys: Capture, more: list[str], code: int, subject: str) -> None:
    assert main([*words, *more]) == code
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("orl: error")]
    assert subject in line


@pytest.mark.parametrize(
    ("line", "subject"),
    [
        ("{", "line 1"),
        ('{"messages": [{"role": "user", "content": "Hi."}]}', "line 1"),
        ('{"messages": [{"role": "judge", "content": "Hi."}]}', "judge"),
        (json.dumps(CHAT).replace('\\"number\\": 7', "7"), "line 1"),
    ],
)
def test_bad_row_is_named(words: list[str], capsys: Capture, line: str, subject: str) -> None:
    Path("chats.jsonl").write_text(line + "\n", encoding="utf-8")
    assert main([*words, "--rows", "chats.jsonl"]) == 1
    assert subject in capsys.readouterr().err
    assert not Path("runs").exists()


def test_ids_of_another_tokenizer_are_refused(words: list[str], capsys: Capture) -> None:
    with Journal("other"):
        pass
    build(template("qwen3_instruct_2507"), added=("<tool_call>", "</tool_call>")).backend_tokenizer.save(
        "other/tokenizer.json"
    )
    assert main([*words, "--journal", "other"]) == 1
    assert "another tokenizer" in capsys.readouterr().err


def test_a_conversation_is_rendered_as_its_template_does() -> None:
    renderer, hf = renderer_of("qwen3_instruct_2507"), tokenizer("qwen3_instruct_2507")
    job = RolloutSpec(task=Task(env_name=PLAIN, deployment_name=PLAIN), rollout_id="row")
    outcome = episode_of(msgspec.convert(CHAT, Chat), renderer, job)
    (datum,) = outcome.datums
    assert outcome.datums == to_data(outcome.trajectory, reward=0.0)
    calls = [{"function": {"name": "guess", "arguments": {"number": 7}}}]
    said = [{**message, "content": message["content"] or ""} for message in CHAT["messages"]]
    said[1]["tool_calls"] = said[3]["tool_calls"] = calls
    whole = hf.apply_chat_template(said, tools=[TOOL], add_generation_prompt=False)
    assert hf.decode([*datum.prompt, *datum.response]) == whole.removesuffix("\n")
    trained = [token for token, mask in zip(datum.response, datum.loss_mask, strict=True) if mask]
    assert trained == [token for turn in outcome.trajectory.turns for token in turn.action_ids]


def test_recipe_follows_the_size_of_the_model(model: str) -> None:
    Path("config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")  # of 8B parameters
    assert recipe(model) == {"steps": 400, "batch_size": 16, "lr": 6e-3}
    assert recipe(".") == {"steps": 150, "batch_size": 32, "lr": 1e-4}

"""`orl init` asks servers of three kinds, and the file that it writes loads, passes doctor and trains."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.config import Secret, load_config
from orl_core.config.schema import editor_schema
from orl_core.messages import ToolSpec
from orl_launcher import trainers
from orl_launcher.cli import DEFAULT_CONFIG
from orl_launcher.init.survey import Survey
from orl_launcher.init.write import SCHEMA, choose_splits, config_text, write_config
from orl_launcher.main import main
from orl_launcher.playground import checkpoint_folder
from orl_playground.tiny_model import build_tokenizer
from orl_rollout import Opening
from orl_rollout.run_folder.metrics_log import read
from orl_testing.environments import Echo, Served, Terminal, serve

from tests.kit.mystery import Mystery
from tests.kit.serving import free_port
from tests.launcher.platform_api import platform_api

Capture = pytest.CaptureFixture[str]
KEY = "hush-hush-4711"
TRAINER = {"backend": "local", "model": "a/b", "num_rollout": 9, "rollout_batch_size": 8, "n_samples": 4}


@pytest.fixture(scope="module")
def two() -> Generator[Served]:
    """A server of two environments, one of which takes a plain answer."""
    with serve(Echo, Terminal) as served:
        yield served


def test_server_that_is_not_there_is_told_with_advice(capsys: Capture) -> None:
    assert main(["init", f"http://127.0.0.1:{free_port()}"]) == 1
    assert "Start the server, or correct the address" in capsys.readouterr().err


def test_file_for_the_only_environment_of_a_server(guess_number: str, model: str, capsys: Capture) -> None:
    assert main(["init", guess_number, "--model", model, "--output", "my.yaml"]) == 0
    assert "a session opens with 1 message, tools: guess" in capsys.readouterr().out
    text = Path("my.yaml").read_text("utf-8")
    assert text.startswith(f"# yaml-language-server: $schema=./{SCHEMA}\n")
    assert Path(SCHEMA).read_text("utf-8") == editor_schema(trainers.sections())
    assert "# tool guess: Guess the number.\n" in text
    assert "# train (464 tasks), test (256 tasks)\n" in text
    assert re.search(
        r"# first prompt, 5\d characters: Find the number I picked from \d+ to \d+. Guesses left: 4\n", text
    )
    assert "# secrets:\n" in text
    config = load_config(Path("my.yaml"))
    (environment,) = config.environments.values()
    assert [*config.environments] == ["local/guessnumber"]
    assert (environment.base_url, environment.splits, environment.eval_splits) == (guess_number, ("train",), ("test",))
    assert (config.trainer.backend, config.trainer.model) == ("local", model)


def test_one_of_several_environments_is_named(two: Served, model: str, capsys: Capture) -> None:
    assert main(["init", two.url, "--model", model]) == 1
    assert "echo, terminal" in capsys.readouterr().err
    assert main(["init", two.url, "--variant", "nothing"]) == 1
    assert "'nothing'" in capsys.readouterr().err
    assert main(["init", two.url, "--variant", "Terminal", "--model", model]) == 0
    assert "# a plain answer ends the episode\n" in Path("terminal.yaml").read_text("utf-8")
    assert two.sessions == 0


def test_playground_is_served_meanwhile(guess_number: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # instead of a process
    monkeypatch.setattr("orl_playground.server.serving", lambda **_: nullcontext([guess_number]))
    assert main(["init", "playground/GuessNumber", "--model", model]) == 0
    assert guess_number not in Path("guessnumber.yaml").read_text("utf-8")
    assert load_config(Path("guessnumber.yaml")).environment("playground/GuessNumber").base_url is None


def test_platform_tells_which_secrets_are_needed(model: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    with serve(Echo) as sessions, platform_api() as platform:
        monkeypatch.setenv("OPENREWARD_API_URL", platform.url)
        monkeypatch.setenv("OPENREWARD_SESSION_URL", sessions.url)
        assert main(["init", "Org/Echo", "--model", model]) == 1
        assert "OPENREWARD_API_KEY" in capsys.readouterr().err
        assert not Path("echo.yaml").exists()
        monkeypatch.setenv("OPENREWARD_API_KEY", KEY)
        platform.needed = ["JUDGE_KEY"]
        assert main(["init", "Org/Echo", "--model", model]) == 1  # doctor: the secret has no value
        text = Path("echo.yaml").read_text("utf-8")
        assert "no value or no hosts: judge_key" in text
        assert load_config(Path("echo.yaml")).secrets == {"judge_key": Secret()}
        platform.needed = []
        assert main(["init", "Org/Echo", "--model", model, "--output", "open.yaml"]) == 0
        assert load_config(Path("open.yaml")).environment("Org/Echo").base_url is None
        assert KEY not in text + Path("open.yaml").read_text("utf-8") + capsys.readouterr().out


def test_secret_without_a_known_host_has_a_place_for_hosts(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    with serve(Echo) as sessions, platform_api() as platform:
        monkeypatch.setenv("OPENREWARD_API_URL", platform.url)
        monkeypatch.setenv("OPENREWARD_SESSION_URL", sessions.url)
        for name in ("OPENREWARD_API_KEY", "JUDGE_KEY", "OPENAI_API_KEY"):
            monkeypatch.setenv(name, KEY + name)
        platform.needed = ["JUDGE_KEY", "OPENAI_API_KEY"]
        assert main(["init", "Org/Echo", "--model", model]) == 1  # doctor asks for hosts
        assert "judge_key" in capsys.readouterr().out
        assert load_config(Path("echo.yaml")).secrets == {"judge_key": Secret(), "openai_api_key": None}
        text = Path("echo.yaml").read_text("utf-8").replace("hosts: []", "hosts: [judge.example.com]")
        Path("echo.yaml").write_text(text, "utf-8")
        assert main(["doctor", "--config", "echo.yaml"]) == 0


@pytest.mark.parametrize(
    ("words", "subject"),
    [
        ([], "Organization/Environment"),
        (["nowhere"], "'nowhere'"),
        (["http://me:secret@127.0.0.1"], "login"),
        (["playground/GuessNumber", "--variant", "x"], "--variant"),
        (["playground/GuessNumber", "--output", "there.yaml"], "there.yaml"),
        (["--model"], "--model"),
    ],
)
def test_command_line_is_refused(words: list[str], subject: str, capsys: Capture) -> None:
    Path("there.yaml").write_text("mine", "utf-8")
    assert main(["init", *words]) == 2
    assert subject in capsys.readouterr().err
    assert Path("there.yaml").read_text("utf-8") == "mine"


@given(split=st.text(st.characters(exclude_categories=["Cs"]), min_size=1), words=st.text())
def test_text_of_a_server_changes_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, split: str, words: str
) -> None:
    tools = (ToolSpec(name="act", description=words),)
    found = Survey(
        name="local/env",
        base_url="http://127.0.0.1:1",
        splits={split: 3},
        opening=Opening(messages=(), tools=tools),
        secrets=("judge_key",),
    )
    output = tmp_path_factory.mktemp("init") / "c.yaml"
    write_config(output, config_text(found, command=words, output=output, trainer=TRAINER))
    config = load_config(output)
    assert config.environment("local/env").splits == (split,)
    assert config.secrets == {"judge_key": None}
    assert config.trainer.model == "a/b"


@pytest.mark.parametrize(
    ("splits", "chosen"),
    [
        (["train", "test"], ("train", "test")),
        (["test", "train", "validation"], ("train", "test")),
        (["easy", "hard"], ("easy", "hard")),
        (["Validation", "easy"], ("easy", "Validation")),
        (["only"], ("only", None)),
        (["test"], ("test", None)),
    ],
)
def test_splits_are_chosen_by_usual_names(splits: list[str], chosen: tuple[str, str | None]) -> None:
    assert choose_splits(splits) == chosen


def test_context_fits_another_game_of_the_tiny_model(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """It spells rare words in bytes."""
    monkeypatch.setenv("ORL_CACHE", str(Path("cache").resolve()))
    folder = checkpoint_folder(load_config(Path(DEFAULT_CONFIG)), Path("cache").resolve())
    folder.mkdir(parents=True)
    build_tokenizer([]).save_pretrained(folder)
    (folder / "warm_start.json").write_text('{"seconds": 1.0}', encoding="utf-8")
    with serve(Mystery) as served:
        main(["init", served.url, "--model", "playground/GuessNumber", "--output", "my.yaml"])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    (told,) = [line for line in lines if "ids of a context of" in line]
    assert told.startswith("ok local/mystery")
    assert "warm-start --config my.yaml --player MODULE:FUNCTION" in lines[-1]
    assert "GuessNumber" in lines[-1]


@pytest.mark.slow
def test_init_imports_no_torch_for_the_file_it_wrote(guess_number: str, model: str) -> None:
    words = ["init", guess_number, "--model", model, "--output", "my.yaml"]
    program = f"import sys; from orl_launcher.main import main; sys.exit(main({words}) or 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "To train: orl train local --config my.yaml" in done.stdout.replace("uv run ", "")


@pytest.mark.parametrize(("characters", "context"), [(30, 8192), (6000, 8192), (9000, 16384), (10**7, 131072)])
def test_context_holds_four_times_the_opening(characters: int, context: int, tmp_path: Path) -> None:
    found = Survey(
        name="local/env",
        base_url=None,
        splits={"train": 1},
        opening=Opening(messages=(), tools=()),
        prompt="x" * characters,
    )
    output = tmp_path / "c.yaml"
    write_config(output, config_text(found, command="", output=output, trainer=TRAINER))
    config = load_config(output)
    assert config.rollout.context_tokens == context
    assert config.trainer.rollout_batch_size == 1  # there is no other task


@pytest.mark.slow
def test_file_for_a_server_trains_two_steps(model: str, capsys: Capture) -> None:
    """On groups that are small."""
    with serve(Mystery) as server:
        assert main(["init", server.url, "--model", model, "--output", "my.yaml"]) == 0
        assert "To train: orl train local --config my.yaml" in capsys.readouterr().out.replace("uv run ", "")
        small = ["--num-rollout", "2", "--rollout-batch-size", "2", "--n-samples", "2", "--set", "eval.max_tasks=2"]
        short = ["--max-response-len", "8", "--set", "environments.local/mystery.max_turns=2"]
        assert main(["train", "local", "--config", "my.yaml", "--name", "two", *small, *short]) == 0
    assert "2 steps" in capsys.readouterr().out
    rows = [row for row in read(Path("runs/two/metrics.jsonl")) if row.kind == "train"]
    assert [row.overall("judged") for row in rows] == [4.0, 4.0]
    assert all(row.overall("turns") for row in rows)

"""docs/coming-from.md: its commands run as dry runs on its own files, with a stand-in for slime; its tables hold."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from orl_cluster.launch.command.trainer_defaults import OWNED
from orl_cluster.launch.machine import probe
from orl_core.config.retrain import PLACES
from orl_launcher.main import main

from tests.kit.markdown import ROOT, quoted, rows_of
from tests.kit.saved import hugging_face
from tests.test_blocks import BLOCKS, commands_of
from tests.test_cookbook_page import FIELDS, options_of
from tests.two_pythons import forked_probe, planning
from tests.two_pythons.environment import make_environment
from tests.two_pythons.planning import words_of

PAGE = ROOT / "docs" / "coming-from.md"
FILES = {block.title: block.text for block in BLOCKS if block.page == "docs/coming-from.md" and block.title}
COMMANDS = [
    words
    for block in BLOCKS
    if (block.page, block.language) == ("docs/coming-from.md", "bash")
    for words in commands_of(block.text)
]
PLAIN_MATH = ["--rm-type math", "--use-kl-loss", "--kl-loss-coef 0.001", "--n-samples-per-prompt 8"]
# The first words of each command, and what it prints.
PRINTED = [
    ("orl train local --config", ["would train", "train.jsonl"]),
    ("orl convert slime", ["--hf-checkpoint", "Qwen3-4B_torch_dist"]),
    ("orl train slime --config math.yaml", [*PLAIN_MATH, "SLIME/train.py", "--colocate", "--use-tensorboard"]),
    ("orl train slime --config math.yaml", [*PLAIN_MATH, "SLIME/train_async.py", "--update-weights-interval 2"]),
    ("orl train slime --config configs/whodunit.yaml", ["generate-function-path orl_slime.generate.generate"]),
    ("orl train slime --config math.yaml", ["generate-function-path custom_generate.generate", *PLAIN_MATH]),
]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    python = str(make_environment(tmp_path_factory.mktemp("second") / "env", "slime"))
    with forked_probe.forking(python):
        yield python


@pytest.fixture
def working(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with the files of the page and the model that it names."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    hugging_face(tmp_path / "models" / "Qwen3-4B")
    monkeypatch.setattr(probe, "answer_of", forked_probe.answer)
    monkeypatch.setenv("ORL_CACHE", str(tmp_path / "cache"))
    return planning.alone(monkeypatch, tmp_path)


@pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.slow), *range(1, len(PRINTED))])
def test_command_of_the_page_runs(capsys: pytest.CaptureFixture[str], python: str, working: Path, number: int) -> None:
    assert len(COMMANDS) == len(PRINTED)
    (start, told), (program, *words) = PRINTED[number], COMMANDS[number]
    assert shlex.join([program, *words]).startswith(start)
    assert "--dry-run" in words
    if words[1] == "slime":
        words[2:2] = ["--python", python]
    main(words)  # its exit code says whether the run would start on this machine
    out, err = capsys.readouterr()
    assert "error" not in err
    printed = " ".join(words_of(out)) if words[1] == "slime" else out
    for text in told:
        assert text.replace("SLIME", "slime/stand_in") in printed


def test_options_of_train_py_have_their_places() -> None:
    ours = options_of("train")
    rows = rows_of(PAGE)["slime: a math run"]
    for row in rows:
        named = [name for name in quoted(row["orl"]) if name.startswith("--")]
        assert {*named} <= {*ours, "--"}
        for name in quoted(row["train.py"]):
            assert name not in OWNED or all(ours in OWNED[name] for ours in named), name
            assert row["orl"] != "the same" or name in ours
    listed = {name for row in rows for name in quoted(row["train.py"])}
    assert {"--actor-num-nodes", "--actor-num-gpus-per-node", "--rollout-num-gpus", "--prompt-data"} <= listed


def test_table_of_retrain_is_that_of_the_refusal() -> None:
    rows = [(row["retrain"].strip("`"), row["orl"]) for row in rows_of(PAGE)["retrain"]]
    assert rows == [*PLACES.items()]


@pytest.mark.parametrize("key", PLACES)
def test_places_of_retrain_exist(key: str) -> None:
    """A quoted place is a key of the configuration, the own name of an option after `trainer.flags`, or a word."""
    names = [name for name in quoted(PLACES[key]) if "." in name or name in FIELDS]
    assert names or key == "hyperparameters.slime_use_retrain_environment"
    assert {*names} <= FIELDS.keys()

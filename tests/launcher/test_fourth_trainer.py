"""A trainer that no package of orl knows trains, resumes and evaluates, in an environment without other adapters."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from orl_launcher import trainers
from orl_rollout.run_folder.metrics_log import read

ROOT = Path(__file__).parents[2]
FOURTH = '''
import json
from typing import Annotated

from msgspec import Meta
from orl_core.config.checked import Checked
from orl_core.errors import ConfigError
from orl_rollout.run_folder.checkpoint import Checkpoint, write_note
from orl_rollout.run_folder.contract import Plan
from orl_rollout.run_folder.metrics_log import append


class Options(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set the options of the fourth trainer."""

    zeal: Annotated[int, Meta(ge=1, description="How hard it tries.")] = 1


default_model, defaults, sections = "", {"num_rollout": 2, "rollout_batch_size": 1, "n_samples": 2}, {"fourth": Options}
conversion_options = packages = ()


def own(config):
    return config.trainer.section("fourth", Options)


def resolve(config, extra):
    if own(config).zeal > 9:
        raise ConfigError("`trainer.fourth.zeal` is above 9. Lower it")
    return config


def plan(run):
    return Plan(command=f"fourth --zeal {own(run.config).zeal} {' '.join(run.extra)}")


def train(run):
    trainer = run.config.trainer.with_defaults(defaults)
    first = 1 + json.loads(open(f"{trainer.load}/steps.json").read()) if trainer.load else 1
    last = first - 1 + trainer.num_rollout
    metrics = run.folder / "metrics.jsonl"
    names = ("rollouts", "judged", "turns", "success")
    numbers = {f"playground/GuessNumber/{name}": 1.0 for name in names}
    zeal = {"playground/GuessNumber/zeal": float(own(run.config).zeal)}
    for step in range(first, last + 1):
        append(metrics, "train", step, {**numbers, **zeal}, seconds=0.1)
    if run.eval_data.is_file():
        append(metrics, "eval", last, numbers, seconds=0.1)
    folder = run.folder / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "none"}')
    (folder / "steps.json").write_text(json.dumps(last))
    write_note(folder, Checkpoint(format="hf", trainer="fourth", model=trainer.model or "", step=last))


def convert(conversion):
    raise ConfigError("fourth converts nothing")


plan_conversion = convert
'''
WITHOUT = """
import sys
from importlib.abc import MetaPathFinder
from importlib.metadata import DistributionFinder, MetadataPathFinder


class Without(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("orl_local", "orl_slime", "orl_miles", "orl_cluster"):
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Without())
found = MetadataPathFinder.find_distributions
hidden = ("orl_local-", "orl_slime-", "orl_miles-")
MetadataPathFinder.find_distributions = classmethod(
    lambda kind, context=DistributionFinder.Context(): (
        each for each in found(context) if not each._path.name.startswith(hidden)
    )
)
import contextlib
import io
import json

from orl_launcher.main import main

answers = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(shown):
        try:
            code = main(words)
        except SystemExit as ended:
            code = ended.code or 0
    answers.append((code, shown.getvalue()))
print(json.dumps(answers))
"""


@pytest.fixture
def working(tmp_path: Path, guess_number: str) -> Path:
    site = tmp_path / "site"
    info = site / "orl_fourth-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: orl-fourth\nVersion: 1\n", "utf-8")
    (info / "entry_points.txt").write_text("[orl.trainers]\nfourth = orl_fourth\n", "utf-8")
    (site / "orl_fourth.py").write_text(FOURTH, "utf-8")
    trainer = {"backend": "fourth", "model": "a/b", "fourth": {"zeal": 2}}
    other = {"local": {"lora_rank": 8}, "flags": {"fourth": {"x": 1}}}
    game = {"base_url": guess_number, "eval_splits": ["test"], "num_samples": 2}
    config = {
        "environments": {"playground/GuessNumber": game},
        "eval": {"max_tasks": 2},
        "trainer": {**trainer, **other},
    }
    (tmp_path / "my.yaml").write_text(json.dumps(config), "utf-8")
    return tmp_path


def orl(working: Path, *commands: list[str]) -> list[tuple[int, str]]:
    """Run the commands in a process that has no adapter but the fourth. Return their exit codes and output."""
    environment = {**os.environ, "PYTHONPATH": str(working / "site"), "COLUMNS": "400"}
    command = [sys.executable, "-c", WITHOUT, json.dumps(commands)]
    done = subprocess.run(command, cwd=working, env=environment, capture_output=True, timeout=120, check=True)
    return [(code, shown) for code, shown in json.loads(done.stdout.splitlines()[-1])]


@pytest.mark.slow
def test_fourth_trainer_trains_resumes_and_evaluates(working: Path) -> None:
    first_run = ["train", "fourth", "--config", "my.yaml", "--name", "first", "--zeal", "3"]
    second_run = [*first_run[:5], "second", "--load", "runs/first", "--num-rollout", "1"]
    third_run = [*second_run, "--name", "third", "--set", "environments.playground/GuessNumber.max_turns=3"]
    allowed = ["--allow-changes", "max_turns"]
    ended = orl(working, first_run, second_run, third_run, [*third_run, *allowed], [*third_run, *allowed, "--dry-run"])
    assert [code for code, _ in ended] == [0, 0, 1, 0, 0], ended
    assert "environments.playground/GuessNumber.max_turns" in ended[2][1]
    for _, shown in ended[3:]:
        assert "max_turns was 20, and is 3 now" in shown
    assert not any("max_turns was " in shown for _, shown in ended[:2])
    assert json.loads((working / "runs/third/config.json").read_bytes())["trainer"]["allow_changes"] == "max_turns"
    first, second = (read(working / "runs" / name / "metrics.jsonl") for name in ("first", "second"))
    zeal = "playground/GuessNumber/zeal"
    assert [(row.kind, row.step, row.metrics.get(zeal)) for row in first] == [
        ("train", 1, 3.0),
        ("train", 2, 3.0),
        ("eval", 2, None),
    ]
    assert [(row.kind, row.step) for row in second] == [("train", 3), ("eval", 3)]
    assert second[0].metrics[zeal] == 2.0
    described = json.loads((working / "runs/second/config.json").read_bytes())["trainer"]
    assert described["model"] == described["load"] == "runs/first/checkpoint"
    assert described["local"] == {"lora_rank": 8}
    assert (working / "runs/second/report.html").is_file()


def test_fourth_trainer_is_planned_and_checked(working: Path) -> None:
    own = ["train", "fourth", "--config", "my.yaml"]
    commands: list[tuple[list[str], int, str]] = [
        ([*own, "--dry-run", "--zeal", "4", "--", "--own", "1"], 0, "fourth --zeal 4 --own 1"),
        ([*own, "--dry-run"], 0, "trainer.local is not used"),
        (["train", "fourth", "--help"], 0, "--zeal"),
        (["train", "--help"], 0, "orl train fourth --help"),
        ([*own, "--zeal", "10"], 1, "above 9"),
        ([*own, "--zeal", "0"], 1, "$.trainer.fourth.zeal"),
        (["train", "local", "--config", "my.yaml"], 2, "orl-local"),
    ]
    ended = orl(working, *(words for words, _, _ in commands))
    for (words, expected, subject), (code, shown) in zip(commands, ended, strict=True):
        assert code == expected, (words, shown)
        assert subject in shown


SHOWN = {"DESCRIPTION", "EXAMPLES", "HELP", "COMMANDS"}  # text for the terminal, with examples
MOVED = {"moved.py", "retrain.py"}  # tables of keys of other configurations


def constants(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the strings in a module's code: neither docstrings nor the text of help."""
    tree = ast.parse(file.read_text("utf-8"))
    left_out: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left_out |= {*ast.walk(node)} if isinstance(node.value, ast.Constant) else set()
        if isinstance(node, ast.Assign) and any(
            isinstance(name, ast.Name) and name.id in SHOWN for name in node.targets
        ):
            left_out |= {*ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left_out:
            yield node.lineno, node.value


@pytest.mark.parametrize("package", ["packages/orl-core", "packages/orl-rollout", "apps/launcher"])
def test_package_names_no_trainer_and_no_option_of_one(package: str) -> None:
    names = trainers.installed()
    paths = {option.path.rpartition(".")[2] for name in names for option in trainers.options_of(name)}
    spelled = {f"--{option.name}" for name in names for option in trainers.options_of(name)}
    others = "|".join({*names} - {"local"})  # which is a word of other things, too
    words = re.compile(rf"\b({others})\b|(train |orl[-_]|trainer\.)local\b|^local\Z")
    common = {"engine", "path", "optimizer"}  # words of other things, too
    for file in sorted((ROOT / package / "src").rglob("*.py")):
        if file.name not in MOVED:
            for line, text in constants(file):
                found = words.search(text) if (file.name, text) != ("survey.py", "local") else None
                assert not found, f"{file}:{line}"
                assert text not in paths - common, f"{file}:{line}"
                assert not spelled & {*re.findall(r"--[a-z][a-z-]+", text)} - {"--engine"}, f"{file}:{line}"

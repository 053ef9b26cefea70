"""The workflows have no logic of their own: each command is a recipe that exists, and `.ci/run` calls it too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_blocks import RECIPES

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
INSTALL = "pip install uv rust-just"


def steps(file: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(file.read_text("utf-8"))["jobs"].values()
    assert all(job["timeout-minutes"] for job in jobs)
    return [step for job in jobs for step in job["steps"]]


def test_there_are_workflows() -> None:
    assert [file.stem for file in WORKFLOWS] == ["check", "docs", "release", "wheels"]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflow_calls_recipes_that_exist(file: Path) -> None:
    commands = [step["run"] for step in steps(file) if "run" in step]
    recipes = [command.removeprefix("just ") for command in commands if command != INSTALL]
    assert recipes
    assert {*recipes} <= {*RECIPES}
    assert commands.count(INSTALL) == len(recipes)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflow_may_only_read(file: Path) -> None:
    assert yaml.safe_load(file.read_text("utf-8"))["permissions"] == {"contents": "read"}
    assert "secrets." not in file.read_text("utf-8")
    uses = [step["uses"] for step in steps(file) if "uses" in step]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", used) for used in uses)


def test_ci_calls_what_the_check_workflow_calls() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert "uv rust-just" in script
    assert script.rstrip().endswith("just check")
    assert "just check" in [step.get("run") for step in steps(ROOT / ".github" / "workflows" / "check.yml")]

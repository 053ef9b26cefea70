"""Every file in configs/ loads, and means what its comments say."""

from __future__ import annotations

from pathlib import Path

import pytest
from orl_core.config import load_config

CONFIGS = Path(__file__).parent.parent / "configs"
FILES = sorted(CONFIGS.rglob("*.yaml"))


def test_there_are_configs() -> None:
    assert {file.name for file in FILES} >= {"local.yaml", "whodunit.yaml", "multi-env.yaml"}
    clusters = [load_config(file).trainer.sections.get("cluster", {}) for file in FILES]
    named = {"configs/schema.json", *(cluster.get("model_args") for cluster in clusters)}
    others = [file for file in CONFIGS.rglob("*") if file.is_file() and file not in FILES]
    assert [file for file in others if f"configs/{file.name}" not in named] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_config_loads_and_says_how_to_use_it(file: Path) -> None:
    config = load_config(file)
    assert config.environments
    text = file.read_text(encoding="utf-8")
    assert str(file.relative_to(CONFIGS.parent)) in text
    schema = "../schema.json" if file.parent != CONFIGS else "./schema.json"
    assert text.startswith(f"# yaml-language-server: $schema={schema}\n")


def test_local_measures_on_tasks_that_are_held_out() -> None:
    config = load_config(CONFIGS / "local.yaml")
    assert config.trainer.backend == "local"
    assert config.trainer.model == "playground/GuessNumber"
    (environment,) = config.environments.values()
    assert not set(environment.splits) & set(environment.eval_splits)
    assert (config.eval.max_tasks or 0) * config.eval.samples >= 256


def test_playground_miles_mixes_two_playable_games() -> None:
    config = load_config(CONFIGS / "playground-miles.yaml")
    assert (config.trainer.backend, config.trainer.sections["cluster"]["train_backend"]) == ("miles", "fsdp")
    assert {name: game.weight for name, game in config.environments.items()} == {
        "playground/GuessNumber": 2,
        "playground/GuessWider": 1,
    }
    assert all(not set(game.splits) & set(game.eval_splits) for game in config.environments.values())


def test_the_tutorials_template_shows_tools_and_literal_braces() -> None:
    template = load_config(CONFIGS / "whodunit.yaml").system_prompt_template
    assert template is not None
    shown = template.format(tools='{"name": "ask"}')
    assert '<tools>\n{"name": "ask"}\n</tools>' in shown
    assert '{"name": "the tool\'s name", "arguments": {"an argument": "its value"}}' in shown

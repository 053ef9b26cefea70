"""The file that a trainer's data source will read, judged before any GPU is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from orl_cluster.launch.cluster_trainer import check_rows
from orl_core.errors import ConfigError
from orl_core.task import Task, row_of

from tests.kit.cookbook_row import cookbook_row
from tests.kit.episodes import config_of

CONFIG = config_of("Echo", "http://127.0.0.1:1")
ARGV = ["--input-key", "prompt", "--label-key", "label"]
ECHO = Task(env_name="gallery/Echo", deployment_name="gallery/Echo", index=1)
TASK: dict[str, Any] = msgspec.to_builtins(row_of(ECHO))


def written(folder: Path, *rows: object) -> Path:
    path = folder / "tasks.jsonl"
    path.write_bytes(b"\n".join(row if isinstance(row, bytes) else msgspec.json.encode(row) for row in rows))
    return path


def test_tasks_and_rows_of_the_trainer_s_own_stand_side_by_side(tmp_path: Path) -> None:
    added = {**TASK, "metadata": {**TASK["metadata"], "rm_type": "math"}, "more": 1}
    plain = {"prompt": "What is 1 + 1?", "label": "2"}
    chat = {"prompt": [{"role": "user", "content": "?"}], "label": None, "metadata": {"rm_type": "math"}}
    path = written(tmp_path, TASK, cookbook_row(ECHO), added, b"", plain, chat, {**plain, "metadata": None})
    assert check_rows(path, CONFIG, [*ARGV, "--apply-chat-template"]) == 3


def test_key_of_a_reward_is_for_plain_rows_alone(tmp_path: Path) -> None:
    """A trainer reads the reward of each sample under it, and ends at the number of a task."""
    argv, plain = [*ARGV, "--reward-key", "score"], {"prompt": "?", "label": ""}
    assert check_rows(written(tmp_path, plain), CONFIG, argv) == 1
    with pytest.raises(ConfigError, match=r"tasks.jsonl:2: --reward-key score: a task's reward is one number"):
        check_rows(written(tmp_path, plain, TASK), CONFIG, argv)


def test_the_fields_are_those_that_the_options_name(tmp_path: Path) -> None:
    path = written(tmp_path, {"question": "?", "orl": TASK["metadata"]})
    check_rows(path, CONFIG, ["--input-key", "question", "--metadata-key", "orl"])
    with pytest.raises(ConfigError, match="it has no `prompt`"):
        check_rows(path, CONFIG, ARGV)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (b'{"prompt": ', "Input data was truncated"),
        (b'{"prompt": "\xff", "label": ""}', "utf-8"),
        ([], "Expected `object`, got `array`"),
        ({"label": ""}, "it has no `prompt`"),
        ({"prompt": "?"}, "it has no `label`"),
        ({"prompt": [{"role": "user", "content": "?"}], "label": ""}, "--apply-chat-template"),
        ({"prompt": "?", "label": "", "metadata": ["gallery/Echo"]}, "its metadata is no object"),
        ({"prompt": "?", "label": "", "metadata": "text"}, "no JSON text"),
        ({"prompt": "?", "label": "", "metadata": '{"env_name": "gallery/Echo"}'}, "deployment_name"),
        ({**TASK, "metadata": {"env_name": "gallery/Echo"}}, "deployment_name"),
        ({**TASK, "metadata": {**TASK["metadata"], "index": "one"}}, r"\$\.index"),
        ({**TASK, "metadata": {**TASK["metadata"], "env_name": "gallery/Ecco"}}, "no environment `gallery/Ecco`"),
    ],
)
def test_a_row_that_cannot_be_played_is_named_by_file_and_line(tmp_path: Path, row: object, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"tasks\.jsonl:2: .*{told}"):
        check_rows(written(tmp_path, TASK, row), CONFIG, ARGV)


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no row in it"):
        check_rows(written(tmp_path, b"", b""), CONFIG, ARGV)

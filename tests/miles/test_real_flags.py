"""miles' own parser with our paths: what a launch would be told, and what it would be refused."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
from orl_miles.generate import generate

from tests.miles.host import arguments
from tests.slime import episode

pytestmark = pytest.mark.miles


def parsed(checkpoint: Path, folder: Path, **flags: Any) -> Any:
    tasks = episode.make_tasks(folder / "tasks.jsonl", 1)
    return arguments(checkpoint, tasks, "http://127.0.0.1:9", {"orl_config": {"a": 1}}, **flags)


def test_the_command_line_of_a_launch_is_miles_own(checkpoint: Path, tmp_path: Path):
    args = parsed(checkpoint, tmp_path)
    assert args.orl_config == {"a": 1}
    assert args.global_batch_size == 4
    assert args.rollout_function_path == args.eval_function_path
    assert args.rollout_function_path.endswith("inference_rollout_common.InferenceRolloutFn")


def test_11_an_option_that_nobody_has_is_refused(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        parsed(checkpoint, tmp_path, orl_no_such_option=1)
    assert end.value.code == 2
    assert "unrecognized arguments: --orl-no-such-option 1" in capsys.readouterr().err


def test_our_own_options_are_on_miles_command_line(checkpoint: Path, tmp_path: Path):
    parser = ArgumentParser()
    generate.add_arguments(parser)  # type: ignore[attr-defined]
    ours = vars(parser.parse_args([]))
    assert ours
    assert ours.keys() <= vars(parsed(checkpoint, tmp_path)).keys()
    assert parsed(checkpoint, tmp_path, orl_config="a.yaml").orl_config == {"a": 1}  # `orl train`'s file wins

"""miles' own parser with our paths: what a launch would be told, and what it would be refused."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
from orl_miles.generate import generate

from tests.miles.host import APIS, CLASS, V1, Api, arguments
from tests.slime import episode

pytestmark = pytest.mark.miles


def parsed(api: Api, checkpoint: Path, folder: Path, **flags: Any) -> Any:
    tasks = episode.make_tasks(folder / "tasks.jsonl", 1)
    return arguments(api, checkpoint, tasks, "http://127.0.0.1:9", {"orl_config": {"a": 1}}, **flags)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_the_command_line_of_a_launch_is_miles_own(
    api: Api, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MILES_USE_LEGACY_ROLLOUT_V1", str(int(api.v1)))
    args = parsed(api, checkpoint, tmp_path)
    assert args.orl_config == {"a": 1}
    assert args.custom_generate_function_path == api.generate
    assert args.global_batch_size == 4
    paths = {
        False: "inference_rollout.inference_rollout_common.InferenceRolloutFn",
        True: "sglang_rollout.generate_rollout",
    }
    assert args.rollout_function_path == args.eval_function_path == f"miles.rollout.{paths[api.v1]}"


def test_11_an_option_that_nobody_has_is_refused(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        parsed(CLASS, checkpoint, tmp_path, orl_no_such_option=1)
    assert end.value.code == 2
    assert "unrecognized arguments: --orl-no-such-option 1" in capsys.readouterr().err


def test_our_own_options_are_on_miles_command_line(checkpoint: Path, tmp_path: Path):
    parser = ArgumentParser()
    generate.add_arguments(parser)  # type: ignore[attr-defined]
    ours = vars(parser.parse_args([]))
    assert ours
    assert ours.keys() <= vars(parsed(CLASS, checkpoint, tmp_path)).keys()
    assert parsed(CLASS, checkpoint, tmp_path, orl_config="a.yaml").orl_config == {"a": 1}  # `orl train`'s file wins


def test_our_own_options_are_not_on_that_of_v1(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("MILES_USE_LEGACY_ROLLOUT_V1", "1")
    with pytest.raises(SystemExit):
        parsed(V1, checkpoint, tmp_path, orl_config="a.yaml")
    assert "unrecognized arguments: --orl-config a.yaml" in capsys.readouterr().err

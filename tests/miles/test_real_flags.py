"""miles' own parser with our paths: what a launch would be told, and what it would be refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.miles.host import APIS, CLASS, Api, arguments
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
    from argparse import ArgumentParser

    from orl_miles.generate import generate

    parser = ArgumentParser(argument_default="none")
    generate.add_arguments(parser)
    ours = vars(parser.parse_args([]))
    assert ours
    args = parsed(CLASS, checkpoint, tmp_path)
    assert set(ours) <= set(vars(args))

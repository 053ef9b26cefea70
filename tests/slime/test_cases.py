"""The cases of slime's contract on a miniature of slime: what `just check` can show without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slime import episode
from tests.slime.cases import CASES, Case
from tests.slime.miniature import Miniature, arguments
from tests.slime.playing import configuration, engine, play


@pytest.mark.parametrize("case", [case for case in CASES if case.alone], ids=lambda case: case.name)
async def test_a_case_of_the_contract(
    case: Case, environment: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with engine(checkpoint, case.faults, thinks=case.thinks) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        fields = {
            "hf_checkpoint": str(checkpoint),
            "prompt_data": str(episode.make_tasks(tmp_path / "tasks.jsonl", 2)),
            "metadata_key": "metadata",
            "n_samples_per_prompt": 2,
            "sglang_router_ip": host,
            "sglang_router_port": int(port),
            "rollout_max_context_len": 2000,
            "orl_config": configuration(case, environment),
        }
        await play(case, Miniature(arguments(**fields | case.args)), server, monkeypatch)

"""Faults of the server while a run trains: nothing is lost, nothing counts twice, nothing becomes reward 0."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from orl_core.errors import EngineError
from orl_core.trajectory import StopReason
from orl_rollout.run_folder.contract import Run
from torch import Tensor

from tests.local.fakes import by_row, rows, summary
from tests.tinker.serving import Served, served
from tests.tinker.test_training import run_at, trained

ROUNDING = 3e-5  # an update changes weights by 1e-3


def last_weights(server: Served) -> dict[str, Tensor]:
    return list(server.server.models.values())[-1].weights()


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((weight - other[name]).abs().max()) for name, weight in one.items())


def judged(run: Run) -> list[float]:
    return [row["toy/Env/judged"] for row in rows(run) if row["kind"] == "train"]


@pytest.fixture(scope="module")
def undisturbed(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], dict[str, Tensor]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    with served(folder / "tinker") as server:
        run = run_at(server, folder / "run", checkpoint, num_rollout=3)
        trained(run)
        return judged(run), last_weights(server)


def once(work: Callable[[], Any], at: str) -> Callable[[str], Any]:
    """Do `work` when the rollout `at` begins; rollouts end as ever."""
    done: list[Any] = []

    def script(key: str) -> Any:
        if key == at and not done:
            done.append(threading.Thread(target=work))
            done[0].start()
            done[0].join(30)
        return by_row(key)

    return script


def test_session_that_expires_loses_no_update(server: Served, checkpoint: Path, tmp_path: Path, undisturbed: Any):
    """The updates since the last checkpoint are made again, each once, in a session of their own."""
    run = run_at(server, tmp_path / "run", checkpoint, num_rollout=3)
    trained(run, once(lambda: server.do(server.server.expire), "train/3/0"))
    assert judged(run) == undisturbed[0]
    assert [row["step"] for row in rows(run)] == [1, 2, 3]
    assert difference(last_weights(server), undisturbed[1]) < ROUNDING
    assert "error" not in summary(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults", [{"retrieve_future": [410, 410]}, {"optim_step": [404]}, {"save_weights_for_sampler": [404]}]
)
def test_update_whose_answer_is_lost_is_made_once(
    server: Served, checkpoint: Path, tmp_path: Path, undisturbed: Any, faults: dict[str, list[int]]
):
    """It may have been made or not: it is made again from the weights before it."""
    run = run_at(server, tmp_path / "run", checkpoint, num_rollout=3)
    original, seen = server.server._forward_backward, len(server.server.sent)

    def lossy(data: bytes) -> Any:
        server.server._forward_backward = original
        server.server.faults |= faults
        return original(data)

    def script(key: str) -> Any:
        if key == "train/2/7":
            server.server._forward_backward = lossy
        return by_row(key)

    trained(run, script)
    assert judged(run) == undisturbed[0]
    assert difference(last_weights(server), undisturbed[1]) < ROUNDING
    assert len(server.server.sent) - seen > 3


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [3.0, 60.0])
def test_server_that_is_away_for_a_while_costs_nothing(
    server: Served, checkpoint: Path, tmp_path: Path, undisturbed: Any, seconds: float
):
    def away() -> None:
        server.do(server.server.down)
        threading.Timer(seconds, lambda: server.do(server.server.up)).start()

    run = run_at(server, tmp_path / "run", checkpoint, num_rollout=3)
    began = time.monotonic()
    trained(run, once(away, "train/2/3"))
    assert time.monotonic() - began > seconds
    assert judged(run) == undisturbed[0]
    assert difference(last_weights(server), undisturbed[1]) < ROUNDING


def test_server_that_refuses_ends_the_run_with_its_error(server: Served, checkpoint: Path, tmp_path: Path):
    run = run_at(server, tmp_path / "run", checkpoint, num_rollout=3, save_interval=1)

    def refuse(key: str) -> Any:
        if key == "train/2/7":
            server.server.faults["forward_backward"] = [400]
        return by_row(key)

    with pytest.raises(EngineError, match="injected"):
        trained(run, refuse)
    assert "injected" in summary(run)["error"]
    assert [row["step"] for row in rows(run)] == [1]


def test_rollout_whose_engine_fails_is_no_reward(server: Served, checkpoint: Path, tmp_path: Path):
    """Law L3: a refused sample ends its rollout; the step trains on the others."""
    run = run_at(server, tmp_path / "run", checkpoint, num_rollout=1)

    def script(key: str) -> Any:
        return StopReason.ERROR if key.endswith(("0", "4")) else float(key[-1]) / 8

    trained(run, script)
    assert judged(run) == [6.0]

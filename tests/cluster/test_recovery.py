"""The changes of a command line after GPU memory ran out, and the run that continues from its checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_cluster.launch.options import CONTEXT, CONTEXT_PARALLEL, ENGINE_SHARE, PER_GPU, value_of
from orl_cluster.launch.run.attempts import Change, changed, going_on, next_change, saved_step
from orl_cluster.launch.run.process import failure_of
from orl_core.config import EnvironmentConfig, RunConfig, TrainerConfig
from orl_rollout.run_folder.contract import Run
from orl_rollout.run_folder.record import RECOVERIES, Recovery, add_recovery, read_recoveries

TRACEBACK, FAILED = (
    "Traceback (most recent call last):\n",
    "ray.exceptions.RayTaskError(ConnectionError): \x1b[36mray::",
)
ARGV = [PER_GPU, "8192", CONTEXT, "8192", ENGINE_SHARE, "0.7", "--seed", "1"]


def all_changes(argv: list[str], given: tuple[str, ...] = (), *, in_engine: bool = False) -> list[Change]:
    """Every change that can be made, in order."""
    made: list[Change] = []
    while change := next_change(changed(argv, made), given, made, in_engine=in_engine):
        made.append(change)
    return made


def test_each_option_is_lowered_in_turn():
    made = [(change.option, change.after) for change in all_changes(ARGV)]
    assert made[:4] == [(PER_GPU, "4096"), (CONTEXT, "4096"), (ENGINE_SHARE, "0.55"), (PER_GPU, "2048")]
    assert made[-1] == (CONTEXT, "1024")


def test_larger_of_packing_and_context_is_lowered_first():
    argv = [PER_GPU, "4096", CONTEXT, "32768", ENGINE_SHARE, "0.7", CONTEXT_PARALLEL, "2"]
    made = [(change.option, change.after) for change in all_changes(argv)]
    assert made[:4] == [(CONTEXT, "16384"), (CONTEXT, "8192"), (ENGINE_SHARE, "0.55"), (PER_GPU, "2048")]


def test_full_engine_gives_up_its_share_first():
    assert all_changes(ARGV, in_engine=True)[0] == Change(option=ENGINE_SHARE, before="0.7", after="0.55")


@given(
    tokens=st.integers(1, 200_000),
    context=st.integers(1, 200_000),
    share=st.floats(0.1, 0.95).map(lambda share: round(share, 2)),
    kept=st.sets(st.sampled_from([PER_GPU, CONTEXT, ENGINE_SHARE])),
    in_engine=st.booleans(),
)
def test_changes_only_lower_and_come_to_an_end(
    tokens: int, context: int, share: float, kept: set[str], *, in_engine: bool
):
    argv = [PER_GPU, str(tokens), CONTEXT, str(context), ENGINE_SHARE, str(share), "--seed", "1"]
    made = all_changes(argv, tuple(kept), in_engine=in_engine)
    assert all(float(change.after) < float(change.before) for change in made)
    assert not kept & {change.option for change in made}
    last = changed(argv, made)
    assert sorted(word for word in last if word.startswith("--")) == sorted([PER_GPU, CONTEXT, ENGINE_SHARE, "--seed"])
    assert all(value_of(last, option) == value_of(argv, option) for option in (*kept, "--seed"))


def test_options_that_are_not_there_are_passed_over():
    assert all_changes(["--micro-batch-size", "1"]) == []


def test_run_goes_on_from_its_own_checkpoint_with_what_it_had(tmp_path: Path):
    flags = {"--load": "a", "no_load_optim": True, "--kl-coef": 0.1}
    trainer = TrainerConfig(backend="slime", load="b", flags={"slime": flags})
    extra = ("--load=c", "--ckpt-step", "3", "--finetune", "--seed", "2", "--start-rollout-id", "4")
    config = RunConfig(environments={"A/B": EnvironmentConfig()}, trainer=trainer)
    run = Run(config=config, folder=tmp_path, task_data=tmp_path, extra=extra)
    on = going_on(run, tmp_path / "checkpoint")
    assert on.config.trainer.load == str(tmp_path / "checkpoint")
    assert on.config.trainer.own_flags == {"--kl-coef": 0.1}
    assert on.extra == ("--seed", "2")
    unsaved = going_on(
        Run(config=run.config, folder=tmp_path, task_data=tmp_path, extra=("--no-save-optim",)), tmp_path
    )
    assert "no_load_optim" in unsaved.config.trainer.own_flags, "the checkpoint has no optimizer to load"


def test_checkpoint_is_what_training_wrote(tmp_path: Path):
    assert saved_step(tmp_path) is None
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    tracker.write_text("release", encoding="utf-8")
    assert saved_step(tmp_path) is None
    tracker.write_text("20\n", encoding="utf-8")
    first = saved_step(tmp_path)
    assert first is not None
    assert first[0] == 20
    os.utime(tracker, ns=(1, 1))
    assert saved_step(tmp_path) != first, "the same step, saved again"


@pytest.mark.parametrize(
    ("text", "memory", "gpu", "engine"),
    [
        ("ValueError: no", False, False, False),
        ("(Actor pid=1) torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB", True, True, False),
        ("RuntimeError: CUDA error: out of memory", True, True, False),
        ("(SGLangEngine pid=1) torch.OutOfMemoryError: CUDA out of memory", True, True, True),
        ("\x1b[36m(SGLangEngine pid=1)\x1b[0m RuntimeError: HIP out of memory", True, True, True),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory", True, False, False),
    ],
)
def test_log_tells_which_memory_ran_out(tmp_path: Path, text: str, *, memory: bool, gpu: bool, engine: bool):
    log = tmp_path / "trainer.log"
    log.write_text(f"before\n{text}\n", encoding="utf-8")
    failure = failure_of(log)
    assert (failure.lacks_memory, failure.lacks_gpu_memory, failure.in_engine) == (memory, gpu, engine)
    start = log.stat().st_size
    with log.open("a", encoding="utf-8") as file:
        file.write("KeyError: other\n")
    assert failure_of(log, start=start).error == "KeyError: other"
    assert not failure_of(log, start=start).lacks_memory


@pytest.mark.parametrize(
    ("line", "gone"),
    [
        (
            "requests.exceptions.ConnectionError: HTTPConnectionPool(host='192.0.2.2', port=25000): "
            "Max retries exceeded with url: /resume_memory_occupation (Caused by E: Connection refused)",
            True,
        ),
        ("ConnectionError: HTTPConnectionPool(host='x', port=8265): with url: /api/jobs/ (Connection refused)", False),
        ("tool.py: error: argument --moe-layer-freq: invalid value", False),
    ],
)
def test_last_error_tells_of_an_engine_that_is_gone(tmp_path: Path, line: str, *, gone: bool):
    log = tmp_path / "trainer.log"
    asked = f"{TRACEBACK}{FAILED}SGLangEngine.resume_memory_occupation()\x1b[39m (pid=4182)\n" if gone else ""
    ending = "[rank0]: Warning: a group was not destroyed"
    log.write_text(f"ValueError: before\n{asked}{line}\n{ending}\n", encoding="utf-8")
    assert failure_of(log).error == line
    assert failure_of(log).engine_gone == gone


@pytest.mark.parametrize(
    ("actor", "between", "gone"),
    [
        ("SGLangEngine", "", True),
        ("RolloutManager", "", False),
        ("SGLangEngine", f"a new engine is there\n{TRACEBACK}", False),
    ],
)
def test_engine_that_ends_before_its_answer_is_gone(tmp_path: Path, actor: str, between: str, *, gone: bool):
    """As a colocated slime logged it: the engine got a SIGKILL while it took its memory back."""
    log = tmp_path / "trainer.log"
    log.write_text(
        f"{TRACEBACK}{FAILED}RolloutManager.onload_weights()\x1b[39m (pid=2662)\n"
        f"{FAILED}{actor}.resume_memory_occupation()\x1b[39m (pid=4182)\n{between}"
        "urllib3.exceptions.ProtocolError: ('Connection aborted.', ConnectionResetError(104, 'reset by peer'))\n"
        "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'reset by peer'))\n",
        encoding="utf-8",
    )
    assert failure_of(log).engine_gone == gone


def test_engine_that_does_not_flush_its_cache_is_gone(tmp_path: Path):
    """As miles logged it: the actor of a dead engine asks for a minute, and then gives up."""
    log = tmp_path / "trainer.log"
    failed = FAILED.replace("Connection", "Timeout")
    log.write_text(
        f"{TRACEBACK}{failed}MegatronTrainRayActor.update_weights()\x1b[39m (pid=57994)\n"
        f"{failed}SGLangEngine.flush_cache()\x1b[39m (pid=35307)\n"
        "TimeoutError: Timeout while flushing cache: HTTPConnectionPool(host='192.0.2.2', port=27400)\n",
        encoding="utf-8",
    )
    assert failure_of(log).engine_gone


def test_record_of_restarts_survives_a_torn_line(tmp_path: Path):
    assert read_recoveries(tmp_path) == ()
    made = Recovery(attempt=1, option=PER_GPU, before="8192", after="4096", checkpoint=20)
    add_recovery(tmp_path, made)
    with (tmp_path / RECOVERIES).open("ab") as file:
        file.write(b'{"attempt": 2')
    assert read_recoveries(tmp_path) == (made,)
    assert "checkpoint 20" in made.text
    assert "4096" in made.text

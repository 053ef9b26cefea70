"""`orl train slime` and `orl train miles` against a second environment with a stand-in: what both have."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from orl_rollout.run_folder.checkpoint import checkpoint_in

from tests.kit.saved import hugging_face, saved
from tests.two_pythons import planning
from tests.two_pythons.environment import STAND_INS
from tests.two_pythons.fixtures import Orl
from tests.two_pythons.planning import APART, WHODUNIT

SHAPE = {"slime": ["--model-args", "qwen3-0.6B"], "miles": list[str]()}  # of a model that is called `model`


@pytest.fixture(scope="session", params=["slime", pytest.param("miles", marks=pytest.mark.slow)])
def trainer(request: pytest.FixtureRequest) -> str:
    return request.param


def test_own_generate_function_plays_plain_rows_alone(orl: Orl) -> None:
    model = ["--model", "Qwen/Qwen3-4B", *(["--megatron-ckpt", "./megatron-ckpt/"] if orl.trainer == "slime" else [])]
    scored = ["--rm-type", "math"] if orl.trainer == "slime" else []
    argv = [*model, "--", "--custom-generate-function-path", "custom_generate.generate", *scored]
    orl.assert_golden("own_generate", orl.planned(*argv, config=planning.plain(orl.working)))
    told = orl.refused(*argv)
    assert "--custom-generate-function-path" in told
    assert "--agent" in told


@pytest.mark.slow
@pytest.mark.parametrize("name", ["weight_check", "weight_check_after_step"])
def test_weights_are_compared_at_first_start_alone(orl: Orl, name: str) -> None:
    """The first sync must leave engines the weights that they have loaded; after a step they are others."""
    model = hugging_face(orl.working / "model", dtype="bfloat16")
    if name == "weight_check_after_step":
        number, fsdp = (19, False) if orl.trainer == "slime" else (19, True)
        saved(orl.working / "runs" / "run" / "checkpoint", number, fsdp=fsdp)
    shown = orl.planned("--model", "model", *SHAPE[orl.trainer], "--num-gpus", "4", "--tp", "1").partition("\n# ")[0]
    orl.assert_golden(name, shown + "\n", **{"/path/to/Qwen3-0.6B": str(model)})


@pytest.mark.slow
def test_old_version_gets_no_weight_check(orl: Orl, monkeypatch: pytest.MonkeyPatch) -> None:
    hugging_face(orl.working / "model", dtype="bfloat16")
    argv = ["--model", "model", *SHAPE[orl.trainer]]
    assert "--check-weight-update-equal" in orl.words(*argv)
    assert "check-weight" not in orl.planned(*argv, "--set", "trainer.flags.check-weight-update-equal=false")
    monkeypatch.setenv("STAND_IN_LACKS", "--check-weight-update-equal")
    plan = orl.planned(*argv)
    assert "check-weight" not in plan
    assert "not checked by the parser" not in plan
    assert "check-weight-update-equal" in orl.refused(*argv, "--", "--check-weight-update-equal")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--", "--use-kl-los"], "did you mean --use-kl-loss?"),  # which miles would take for the option
        (["--", "--wandb-key", "x"], "--wandb-key"),
        (["--", "--group-rm"], "group_reward"),
        (["--", "--max-turns", "5"], "--max-turns"),
        (["--", "--rollout-external"], "--actor-gpus and --rollout-gpus"),
        (["--", "--eval-num-gpus", "2"], "the engines of training evaluate"),
        (["--", "--use-session-server"], "--agent"),
        (["--", "--use-opd", "--opd-type", "sglang"], "--opd-teacher-load"),
        (["--", "--prompt-data", "x"], "--task-data"),
        (["--", "--rollout-max-response-len", "64"], "rollout.turn_tokens"),
        (["--", "--rollout-max-context-len=64"], "rollout.context_tokens"),
        (["--", "--global-batch-size", "1k"], "--global-batch-size 1k: expected a whole number"),
        (["--num-rollout", "9", "--", "--num-epoch", "2"], "--num-epoch 2"),
        (["--actor-gpus", "4"], "give both"),
        (["--advantage-estimator", "own"], "own"),
        (["--train-backend", "megatron", "--model-args", "qwen3-4b"], "did you mean qwen3-4B?"),
        (["--train-backend", "megatron", "--model", "/models/Unheard-1B"], "--model-args"),
        (["--train-backend", "megatron", "--", "--context-parallel-size", "two"], "expected a whole number"),
    ],
)
def test_option_that_trainers_mishandle_is_refused(orl: Orl, argv: list[str], told: str) -> None:
    assert told in orl.refused(*argv)


@pytest.mark.parametrize(("argv", "rival"), planning.OVERRULED)
def test_default_that_would_overrule_an_option_is_left_out(orl: Orl, argv: list[str], rival: str) -> None:
    planning.leaves_out(orl.capsys, orl.trainer, orl.python, argv, rival)


@pytest.mark.slow
def test_flags_in_the_file_and_on_the_command_line_give_one_command(orl: Orl) -> None:
    flags = orl.working / "flags.yaml"
    told = 'flags: {"--use-kl-loss": true, kl_loss_coef: 0.01, "--rollout-shuffle": false, "--eps-clip": 0.3}'
    text = Path(WHODUNIT).read_text(encoding="utf-8")
    flags.write_text(text.replace("  backend: slime\n", f"  backend: {orl.trainer}\n  {told}\n"), encoding="utf-8")
    filed = orl.planned(config=str(flags))
    given = orl.words("--", "--use-kl-loss", "--kl-loss-coef", "0.01", "--eps-clip", "0.3")
    assert "--rollout-shuffle" in given
    assert planning.words_of(filed) == [word for word in given if word != "--rollout-shuffle"]
    over = orl.words("--", "--eps-clip=0.4", config=str(flags))
    assert [word for word in over if "eps-clip" in word] == ["--eps-clip=0.4"]


def test_python_without_the_trainer_is_one_line(orl: Orl) -> None:
    assert f"/usr/bin/env: cannot be asked for {orl.trainer}" in orl.refused(python="/usr/bin/env")


def test_importance_is_corrected_if_rollouts_are_older(orl: Orl) -> None:
    assert "--use-tis" not in orl.words(*DENSE)
    assert "--use-tis" in orl.words(*DENSE, *APART)


MEGATRON, DENSE = ["--train-backend", "megatron"], ["--model", "Qwen/Qwen3-4B"]
REPLAY = "--use-rollout-routing-replay"
OF_MIXTURES = ["--use-tis", "--sequence-parallel", REPLAY]  # the model that is not named is one


def test_mixture_replays_routing_and_corrects_importance(orl: Orl) -> None:
    assert {*OF_MIXTURES} <= {*orl.words(*MEGATRON)}
    assert not {*OF_MIXTURES} & {*orl.words(*MEGATRON, *DENSE)}
    off = [word for name in OF_MIXTURES for word in ("--set", f"trainer.flags.{name.removeprefix('--')}=false")]
    assert not {*OF_MIXTURES} & {*orl.words(*MEGATRON, *off)}


@pytest.mark.slow
def test_mixture_options_follow_the_other_options(orl: Orl, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of the user's may read no routing, and `--use-routing-replay` records it in training."""
    assert "--sequence-parallel" not in orl.words(*MEGATRON, "--", "--tensor-model-parallel-size", "1")
    assert "--use-tis" not in orl.words(*MEGATRON, "--", "--use-rollout-logprobs")
    assert REPLAY not in orl.words(*MEGATRON, "--", "--use-routing-replay")
    own = ["--", "--custom-generate-function-path", "own.generate"]
    assert REPLAY not in orl.words(*MEGATRON, *own, config=planning.plain(orl.working))
    monkeypatch.setenv("STAND_IN_LACKS", REPLAY)
    assert REPLAY not in orl.words(*MEGATRON)


@pytest.mark.slow
def test_router_that_drops_the_request_for_routing_replays_none(orl: Orl) -> None:
    """The released sglang-router 0.3.2 does: every rollout of a run ended in ERROR."""
    old = shutil.copytree(STAND_INS[orl.trainer], orl.working / "old")
    (old / "sglang_router" / "router.so").write_bytes(b"return_hidden_states")
    path = [*MEGATRON, f"--{orl.trainer}-path", str(old)]
    plan = orl.planned(*path)
    assert REPLAY not in planning.words_of(plan)
    assert "`return_routed_experts`" in plan
    assert f"not start on this machine: {REPLAY}" in orl.planned(*path, "--", REPLAY)
    own = ["--", REPLAY, "--sglang-router-ip", "127.0.0.1"]
    assert REPLAY in orl.words(*path, *own)
    (old / "sglang_router" / "router.so").unlink()
    assert REPLAY in orl.words(*path), "without a library nothing is known to be dropped"


@pytest.mark.parametrize("experts", [{"num_experts": 128}, {"text_config": {"n_routed_experts": 8}}])
def test_mixture_is_known_by_config_without_trainer(orl: Orl, experts: dict[str, object]) -> None:
    """The shape of a model is in the trainer's checkout."""
    model = hugging_face(orl.working / "model", **experts)
    words = ["train", orl.trainer, "--config", planning.WHODUNIT, "--dry-run", "--model", str(model), *MEGATRON]
    assert REPLAY in planning.shown(orl.capsys, words)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("backend", ["megatron", "fsdp"])
def test_run_passes_config_and_keeps_secrets_in_environment(
    orl: Orl, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """slime has no backend but Megatron."""
    if (orl.trainer, backend) == ("slime", "fsdp"):
        assert "Megatron alone" in orl.refused("--train-backend", backend)
        return
    monkeypatch.setenv("OPENREWARD_API_KEY", "orl-secret-key")
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    hugging_face(orl.working / "model", dtype="float32")
    shape = "qwen3-0.6B" if orl.trainer == "slime" else "qwen3-4B"
    chosen = ["--train-backend", backend, *(["--model-args", shape] if backend == "megatron" else [])]
    if orl.trainer == "miles" and backend == "megatron":
        chosen += ["--megatron-ckpt", str(saved(orl.working / "converted", None))]
    (orl.working / "own.yaml").write_text("mine: 7\n", encoding="utf-8")
    chosen += ["--", "--custom-config-path", "own.yaml", "--eps-clip", "0.3"]
    assert planning.trained(orl.trainer, orl.python, orl.working, *chosen) == 0
    folder = orl.working / "runs" / "run"
    seen = json.loads((folder / "seen.json").read_text(encoding="utf-8"))
    assert seen["folder"] == str(orl.working)
    assert seen["environment"]["PATH"].split(os.pathsep)[0] == str(Path(orl.python).parent)
    assert seen["environment"]["OPENREWARD_API_KEY"] == "orl-secret-key"
    assert seen["environment"]["token"] == "hush-hush", "a value in the configuration reaches the workers"
    written = "".join(
        path.read_text("utf-8", "replace") for path in folder.rglob("*") if path.is_file() and path.name != "seen.json"
    )
    assert not [secret for secret in ("hush-hush", "orl-secret-key") if secret in written]
    assert "orl-secret-key" not in " ".join(seen["argv"])
    assert seen["argv"][-2:] == ["--eps-clip", "0.3"]
    assert ("CUDA_DEVICE_MAX_CONNECTIONS" in seen["environment"]) == (backend == "megatron")
    handed = json.loads((folder / f"{orl.trainer}.json").read_text(encoding="utf-8"))
    assert (handed["mine"], handed["orl_folder"]) == (7, str(folder))
    assert handed["orl_config"]["secrets"] == {"token": None}
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert (summary["steps"], summary["success_before"], summary["success_after"]) == (1, 0.25, 0.75)
    assert "seconds_per_step" not in summary, "the trainer's hook knows the seconds of rollouts alone"
    assert summary["rollout_seconds_per_step"] == 1.0
    noted = checkpoint_in(folder / "checkpoint")
    assert noted is not None
    assert (noted.format, noted.trainer, noted.step) == (backend, orl.trainer, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_run_that_dies_of_memory_names_the_levers(orl: Orl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_ENDS", "memory")
    hugging_face(orl.working / "model", dtype="float32")
    argv = [*SHAPE[orl.trainer], "--memory-retries", "0"]
    assert planning.trained(orl.trainer, orl.python, orl.working, *argv) == 1
    told = orl.capsys.readouterr().err
    assert "CUDA out of memory" in told
    assert "--max-tokens-per-gpu" in told
    assert ("--fsdp-cpu-offload" in told) == (orl.trainer == "miles")
    assert ("--optimizer-cpu-offload" in told) == (orl.trainer == "slime")
    assert "error" in json.loads((orl.working / "runs/run/summary.json").read_text(encoding="utf-8"))

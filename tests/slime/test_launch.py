"""`orl train slime` from this environment against a second one that has slime (a stand-in): two Pythons."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from orl_cluster.launch.machine.ray_cluster import unclosable
from orl_launcher.main import main
from orl_launcher.trainers import WOULD_NOT_START

from tests.kit.model_shapes import QWEN3
from tests.kit.saved import hugging_face, saved
from tests.two_pythons import planning
from tests.two_pythons.environment import STAND_INS
from tests.two_pythons.fixtures import Orl
from tests.two_pythons.planning import APART, WHODUNIT, words_of

SCRIPT = "/path/to/slime/scripts/models/qwen3-0.6B.sh"
QUICK_START = [
    *("--model", "/path/to/Qwen3-0.6B-Instruct/", "--megatron-ckpt", "./megatron-ckpt/", "--model-args", SCRIPT),
    *("--num-gpus", "4", "--tp", "1", "--rollout-batch-size", "4", "--n-samples", "2", "--num-rollout", "10"),
]
ANY = ["--model", "Qwen/Qwen3-4B", "--megatron-ckpt", "./megatron-ckpt/"]

# Every command line of the cookbook's README for slime, its `bash run.sh` replaced by `just train-slime --config C`.
COOKBOOK = {
    "quick_start": QUICK_START,
    "defaults": ["--megatron-ckpt", "./megatron-ckpt/"],
    "different_model": ANY,
    "adjust_gpu_count": [*ANY, "--num-gpus", "8", "--tp", "4"],
    "tune_training": [*ANY, "--lr", "5e-6", "--n-samples", "8", "--rollout-batch-size", "16"],
    "arbitrary_arguments": [*ANY, "--", "--context-parallel-size", "2", "--use-kl-loss", "--kl-loss-coef", "0.01"],
    "resume": [*ANY[:2], "--megatron-ckpt", "./checkpoints/"],
    "wandb": [*ANY, "--wandb-project", "slime-openreward", "--wandb-run", "first try"],
    "asynchronous": [*ANY, "--async", "--actor-gpus", "4", "--rollout-gpus", "4", "--advantage-estimator", "gspo"],
}

# OpenReward's tutorial for slime: every flag of its table at its default; and the script alone, divided and resumed, as
# the cookbook's README had them when slime had FSDP.
TABLE = [
    *("--model", "Qwen/Qwen3-30B-A3B", "--lr", "1e-5", "--n-samples", "16", "--rollout-batch-size", "32"),
    *("--max-response-len", "4096", "--max-tokens-per-gpu", "8192", "--temperature", "1.0"),
    *("--train-backend", "megatron"),
]
TUTORIAL = {
    "tutorial": TABLE,
    "bare": [],
    "divided": ["--actor-gpus", "4", "--rollout-gpus", "4", "--tp", "4"],
    "load": ["--load", "/path/to/checkpoints/"],
}
LINES = COOKBOOK | TUTORIAL
SMALL = ["--n-samples", "4", "--rollout-batch-size", "1"]
FULLY_ASYNC = ["--rollout-function-path", "slime.rollout.fully_async_rollout.generate_rollout_fully_async"]


@pytest.mark.parametrize("name", LINES)
def test_a_command_line_of_cookbook_and_tutorial_gives_the_golden_command(
    orl: Orl, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name == "wandb":
        monkeypatch.setenv("WANDB_API_KEY", "never-shown")
    shown = orl.planned(*LINES[name])
    assert "never-shown" not in shown
    orl.assert_golden(name, shown)
    assert list(orl.working.iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--", "-use-kl-loss"], "did you mean --use-kl-loss?"),
        (["--", "eps-clip", "0.3"], "eps-clip: expected an option of the trainer"),
        (["--", "--eps-clip", "0.3", "--", "--lr", "1"], "--: expected an option of the trainer"),
        (["--", "--custom-config-path"], "expected a file"),
        (["--async", "--actor-gpus", "4", "--rollout-gpus", "4", "--", "--colocate"], "off when --async"),
        (["--", "--actor-num-nodes", "2"], "--actor-num-nodes is set by --actor-nodes"),
        (["--", "--actor-num-gpus-per-node=8"], "else --num-gpus"),
        (["--", "--num-gpus-per-node", "8"], "is set by --num-gpus"),
        (["--", "--rollout-num-gpus", "8"], "is set by --rollout-gpus"),
        (["--task-data", "none.jsonl"], "none.jsonl: no such file"),
        (["--n-sample", "4"], "did you mean --n-samples?"),
        (["--async"], "--actor-gpus and --rollout-gpus"),
        (["--set", "rollout.workers=2"], "slime plays in processes of its own"),
        (["--num-gpus", "6", "--tp", "4"], "--tp 4 does not divide"),
        (["--num-gpus", "8", "--tp", "1", *SMALL], "fewer rollouts than the 8 data-parallel ranks of 8 training GPUs"),
        (["--", *FULLY_ASYNC], "give --async"),
        ([*APART, "--", *FULLY_ASYNC, "--partial-rollout"], "--partial-rollout: --rollout-function-path"),
        ([*APART, "--", *FULLY_ASYNC, "--dynamic-sampling-filter-path", "a.b"], "--dynamic-sampling-filter-path: "),
        ([*APART, "--set", "thinking=strip", "--", *FULLY_ASYNC], "makes several samples of a rollout"),
    ],
)
def test_options_slime_mishandles_are_refused_with_advice(orl: Orl, argv: list[str], told: str) -> None:
    assert told in orl.refused(*argv)


BATCH, CONTEXT, RESPONSE = "--global-batch-size", "--rollout-max-context-len", "--rollout-max-response-len"
LARGER = ["--max-tokens-per-gpu", "20000"]
OPTIMIZER = {
    "--weight-decay": "0.1",
    "--adam-beta1": "0.8",
    "--adam-beta2": "0.95",
    "--adam-eps": "1e-06",
    "--lr-decay-style": "cosine",
}


@pytest.mark.parametrize(
    ("argv", "values"),
    [
        # the batch of an update follows from the other sizes
        (["--", "--num-steps-per-rollout", "2"], {BATCH: "256"}),
        (["--set", "trainer.flags.rollout-batch-size=8", "--", "--n-samples-per-prompt", "4"], {BATCH: "32"}),
        (["--", "--num-steps-per-rollout", "2", "--global-batch-size", "256"], {BATCH: "256"}),
        # packing and context are two settings: packing cuts no episode
        (["--max-response-len", "16384", *LARGER], {RESPONSE: "16384", CONTEXT: "8192"}),
        (["--set", "rollout.turn_tokens=16384", *LARGER], {RESPONSE: "16384", CONTEXT: "8192"}),
        (["--max-tokens-per-gpu", "4096"], {CONTEXT: "8192"}),
        (["--max-tokens-per-gpu", "4096", "--", "--context-parallel-size", "2"], {CONTEXT: "16384"}),
        (["--max-context-len", "9000"], {CONTEXT: "9000"}),
        ([word for pair in OPTIMIZER.items() for word in pair], OPTIMIZER),
    ],
)
def test_options_have_their_values(orl: Orl, argv: list[str], values: dict[str, str]) -> None:
    words = orl.words(*argv)
    assert {option: words[words.index(option) + 1] for option in values} == values


@pytest.mark.slow
@pytest.mark.parametrize("value", ["0", "false", "-1"])
def test_switch_with_value_is_refused(orl: Orl, value: str) -> None:
    told = "# it would not start on this machine: --use-tis is a switch and takes no value"
    assert told in orl.planned("--", "--use-tis", value)
    assert told not in orl.planned("--", "--use-tis", "--eps-clip", value)


def test_settings_for_tasks_are_named_without_tasks(orl: Orl, working: Path) -> None:
    """A file with `reward` may serve another trainer; an agent would play nothing."""
    config = planning.plain(working)
    assert "# `reward` scores tasks" in orl.planned(*ANY, "--set", "reward=json:loads", config=config)
    assert "`agent`" in orl.refused(*ANY, "--agent", "json:loads", config=config)


@pytest.mark.parametrize("name", ["", "--", "-x", "--eps-clip=0.3", "--eps-clip 0.3", "--prompt-data=x"])
def test_a_flag_of_the_file_that_is_no_options_name_is_refused(orl: Orl, working: Path, name: str) -> None:
    path = working / "flags.yaml"
    path.write_text(f"environments: {{Org/Env: {{}}}}\ntrainer: {{flags: {{'{name}': true}}}}\n", encoding="utf-8")
    told = orl.refused(*ANY, config=str(path))
    assert f"`trainer.flags` has `{name}`: expected a name" in told


def test_without_the_parser_the_command_is_printed_and_says_so(orl: Orl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_WITHOUT_TORCH", "1")
    plan = orl.planned("--", "--no-such-option")
    assert "# not checked by the parser of slime: --no-such-option: " in plan
    assert "No module named 'torch'" in plan


def checkpoint(folder: Path, model_type: str = "qwen3") -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
    return folder


def test_several_nodes_without_a_cluster_are_told_how_to_start_one(orl: Orl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "never-shown")
    plan = orl.planned("--actor-nodes", "2", "--num-gpus", "8")
    assert "the run needs 16 GPUs, 8 on a node. Ask for fewer, or start a Ray cluster of 2 nodes" in plan
    assert "`OPENREWARD_API_KEY=... OPENAI_API_KEY=... ray start --num-gpus=8 --head --port=6379`" in plan
    assert "OPENAI_API_KEY=... ray start --num-gpus=8 --address=FIRST:6379" in plan
    assert "RAY_ADDRESS=FIRST:6379 orl train" in plan


def test_nodes_of_the_engines_are_counted(orl: Orl) -> None:
    divided = ("--num-gpus", "8", "--actor-gpus", "8", "--rollout-gpus", "16")
    plan = orl.planned("--async", "--actor-nodes", "2", *divided)
    assert "the run needs 32 GPUs, 8 on a node. Ask for fewer, or start a Ray cluster of 4 nodes" in plan


@pytest.mark.parametrize("name", ["--reward-key", "--eval-reward-key"])
def test_key_of_a_reward_is_refused_with_held_out_tasks(orl: Orl, working: Path, name: str) -> None:
    held_out = planning.held_out(working)
    told = orl.refused("--", name, "score", config=held_out)
    assert f"{name} score: the reward of a held-out task is one number" in told


def test_fully_async_run_evaluates_by_the_other_function(orl: Orl, working: Path) -> None:
    """slime's fully async function raises at an evaluation, which ends the run at its first."""
    held_out = planning.held_out(working)
    plan = orl.planned(*APART, "--", *FULLY_ASYNC, config=held_out)
    assert "--eval-function-path slime.rollout.sglang_rollout.generate_rollout" in plan
    assert "--eval-function-path" not in orl.planned(*APART, "--", *FULLY_ASYNC)
    own = orl.planned(*APART, "--", *FULLY_ASYNC, "--eval-function-path", "a.b", config=held_out)
    assert "--eval-function-path a.b" in own


def test_fully_async_run_of_newest_slime_filters_and_evaluates(orl: Orl, working: Path) -> None:
    """It does not evaluate if it plays on several nodes, and its queue stores no advantages of turns."""
    newest = working.parent / "newest"
    shutil.copytree(STAND_INS["slime"], newest)
    (newest / "slime" / "rollout").mkdir()
    source = "eval_rollout = 'of slime.rollout.sglang_rollout'\nfilter = 'dynamic_sampling_filter_path'\n"
    (newest / "slime" / "rollout" / "fully_async_rollout.py").write_text(source, encoding="utf-8")
    apart = [*APART, "--slime-path", str(newest)]
    own = ["--", *FULLY_ASYNC, "--dynamic-sampling-filter-path", "orl_slime.hooks.has_signal"]
    held_out, straw = planning.held_out(working), ["--rollout-data-transport", "straw"]
    plan = orl.planned(*apart, *own, config=held_out)
    assert "--dynamic-sampling-filter-path orl_slime.hooks.has_signal" in plan
    assert "--eval-function-path" not in plan
    nodes = orl.planned(*apart, *own, *straw, config=held_out)
    assert "--eval-function-path slime.rollout.sglang_rollout.generate_rollout" in nodes
    turns = ["--set", "turn_advantages=true"]
    assert "straw stores no `turn_advantages`" in orl.refused(*apart, *turns, *own, *straw)


@pytest.mark.slow
def test_reward_function_is_loaded_by_trainers_python(orl: Orl, working: Path) -> None:
    """The trainer's Python may have other modules than this one; the working folder is searched in both."""
    named = ["--set", "reward=own_rewards_of_slime:score"]
    assert "`own_rewards_of_slime`" in orl.refused(*named)
    (working / "own_rewards_of_slime.py").write_text("def score(trajectory): return 1.0\n", encoding="utf-8")
    assert orl.planned(*named) == orl.planned()


@pytest.mark.slow
def test_turn_advantages_reach_slime_or_are_refused(orl: Orl) -> None:
    turns = ["--set", "turn_advantages=true"]
    words = orl.words(*turns)
    assert words[words.index("--custom-advantage-function-path") + 1] == "orl_slime.advantages.turn_advantages"
    assert "does not fit --advantage-estimator ppo" in orl.refused(*turns, "--advantage-estimator", "ppo")
    own = ["--", "--custom-advantage-function-path", "mine.advantages"]
    assert "`turn_advantages` sets it" in orl.refused(*turns, *own)


def test_custom_reward_path_scores_plain_rows_alone(orl: Orl, working: Path) -> None:
    own = ["--", "--custom-rm-path", "mine.rm"]
    assert "--custom-rm-path scores plain rows" in orl.refused(*own)
    (working / "rows.jsonl").write_text('{"prompt": "?", "label": "1"}\n', encoding="utf-8")
    words = orl.words("--task-data", "rows.jsonl", *own)
    assert words[words.index("--custom-rm-path") + 1] == "mine.rm"


def test_unplayable_task_file_is_refused_before_gpu_request(orl: Orl, working: Path) -> None:
    (working / "tasks.jsonl").write_text('{"prompt": "?", "label": "", "metadata": {"env_name": "a/B"}}\n')
    told = orl.refused("--task-data", "tasks.jsonl")
    assert "tasks.jsonl:1: its metadata is no task of `orl prepare`" in told


@pytest.mark.slow
def test_divided_gpus_are_counted_together(orl: Orl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would wait for ever for what is not there."""
    monkeypatch.setenv("STAND_IN_GPUS", "8")
    divided = ["--actor-gpus", "4", "--rollout-gpus", "4"]
    assert "the run needs" not in orl.planned(*divided)
    few = "the run needs 8 GPUs, 4 on a node. Ask for fewer"
    assert few in orl.planned(*divided, "--num-gpus", "4")
    monkeypatch.setenv("STAND_IN_GPUS", "4")
    assert few in orl.planned(*divided)
    assert "this machine has 4 GPUs but the run needs 8" in orl.planned(*divided, "--num-gpus", "8")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert "the run needs" not in orl.planned(*divided)


def test_gpus_that_others_use_are_left_out(orl: Orl, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*argv: str) -> tuple[str, bool]:
        plan = orl.planned(*ANY, *argv)
        words = words_of(plan)
        visible = [word.partition("=")[2] for word in words if word.startswith("CUDA_VISIBLE_DEVICES=")]
        return f"{words[words.index('--num-gpus-per-node') + 1]} of {visible}", "other processes use" in plan

    monkeypatch.setenv("STAND_IN_GPUS", "4")
    monkeypatch.setenv("STAND_IN_FREE_GIB", "20,79,0,79")
    assert taken() == ("2 of ['1,3']", True)
    assert taken("--num-gpus", "4") == ("4 of []", False)
    assert taken("--actor-nodes", "2") == ("4 of []", False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    assert taken() == ("1 of ['3']", True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    assert taken() == ("2 of []", False), "all are used: the memory report says so"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert taken() == ("2 of []", False)


def test_memory_is_compared_with_the_gpus_that_are_found(
    orl: Orl, monkeypatch: pytest.MonkeyPatch, working: Path
) -> None:
    (working / "Qwen3-4B").mkdir()
    (working / "Qwen3-4B" / "config.json").write_bytes(msgspec.json.encode(QWEN3["8B"]))
    own = ["--model", "./Qwen3-4B", "--megatron-ckpt", "./ckpt", "--num-gpus", "1"]
    monkeypatch.setenv("STAND_IN_GPUS", "1")
    assert "would not start on this machine: training needs about" in orl.planned(*own)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert "training needs" not in orl.planned(*own)


@pytest.mark.parametrize(
    ("version", "closable"), [("2.51.1", False), ("2.52.0", True), ("3.0.0.dev0", True), ("", True)]
)
def test_ray_without_the_token_starts_no_cluster(version: str, closable: bool) -> None:
    assert (unclosable(version) == []) == closable


def test_run_starts_at_step_0_or_resumes_from_training(orl: Orl, working: Path) -> None:
    """slime takes a `--load` with a tracker for the run's own, which would skip the first step and evaluation."""
    tracker = working / "converted" / "latest_checkpointed_iteration.txt"
    for step in ("release", "iter_0000020"):
        (tracker.parent / step).mkdir(parents=True)
    own = str(working / "runs" / "run" / "checkpoint")
    for step, load in (("release", own), ("20", str(tracker.parent))):
        tracker.write_text(step, encoding="utf-8")
        plan = orl.planned("--megatron-ckpt", "converted")
        words = words_of(plan)
        assert words[words.index("--load") + 1] == load
        assert words[words.index("--ref-load") + 1] == str(tracker.parent)
        assert "load" not in plan.partition("\n# ")[2]


def test_what_stands_after_the_dashes_counts_in_what_orl_works_out(orl: Orl, working: Path) -> None:
    plan = orl.planned("--max-context-len", "9000", "--", "--max-tokens-per-gpu", "9216", "--save", "kept")
    words = words_of(plan)
    assert words[words.index("--rollout-max-context-len") + 1] == "9000"
    assert words[words.index("--load") + 1] == str(working / "kept")
    assert "--load" not in plan.partition("\n# ")[2]


def test_checkpoint_of_fsdp_names_its_conversion(orl: Orl) -> None:
    saved(Path("fsdp"), 3, fsdp=True)
    plan = orl.planned("--load", "fsdp")
    told = f"--load {Path('fsdp').absolute()}: FSDP wrote this checkpoint: run `orl convert miles"
    assert f"# it would not start on this machine: {told}" in plan


@pytest.mark.slow
def test_resume_folder_without_checkpoint_prevents_start(orl: Orl, working: Path) -> None:
    """slime would start anew, and end on the GPUs at a checkpoint that lacks its step."""
    model = str(checkpoint(working / "model"))
    before = working / "runs" / "before" / "checkpoint"
    (before / "iter_0000003").mkdir(parents=True)
    tracker = before / "latest_checkpointed_iteration.txt"
    tracker.write_text("3", encoding="utf-8")
    (before.parent / "config.json").write_text("{}", encoding="utf-8")
    (working / "file").write_text("", encoding="utf-8")
    argv = ["--model", model, "--model-args", "qwen3-0.6B", "--load"]
    for load in ("typo", "file", str(before.parent), str(before / "iter_0000003")):
        (line,) = [line for line in orl.planned(*argv, load).splitlines() if "name the folder that --save" in line]
        assert line.startswith(f"# it would not start on this machine: --load {working / load}: no checkpoint is there")
    assert "load " not in orl.planned(*argv, str(before)).partition("\n# ")[2]
    for step in ("4", "rubbish", ""):
        tracker.write_text(step, encoding="utf-8")
        assert f"--load {before}: its {tracker.name} names {step}" in orl.planned(*argv, str(before))


def test_what_the_command_serves_itself_needs_no_key(orl: Orl, working: Path) -> None:
    served = working / "served.yaml"
    served.write_text("environments: {playground/GuessNumber: {}}\n", encoding="utf-8")
    assert "OPENREWARD_API_KEY" not in orl.planned(config=str(served))


def test_checkouts_come_first_on_the_search_path(orl: Orl, monkeypatch: pytest.MonkeyPatch, working: Path) -> None:
    (working / "lm" / "megatron").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", "/inherited")
    first = orl.words("--slime-path", str(STAND_INS["slime"]), "--megatron-path", "lm")[0]
    assert first == f"PYTHONPATH={STAND_INS['slime']}:{working / 'lm'}:/inherited"
    assert "--megatron-path" in orl.refused("--megatron-path", "none")
    assert "--slime-path" in orl.refused("--slime-path", "lm")


def test_without_a_trainer_the_command_is_shown(capsys: pytest.CaptureFixture[str], working: Path) -> None:
    assert main(["train", "slime", "--config", WHODUNIT, "--name", "run", "--dry-run", "--lr", "5e-6"]) == 1
    plan = capsys.readouterr().out
    words = words_of(plan)
    assert words[1:3] == ["python3", "slime/train.py"]
    assert words[words.index("--lr") + 1] == "5e-06"
    assert "# it would not start on this machine: no Python that has slime is named" in plan
    assert main(["train", "slime", "--config", WHODUNIT, "--name", "run", "--task-data", WHODUNIT]) == 1
    assert not (working / "runs" / "run").exists()


def test_without_slime_checkpoints_are_checked_all_the_same(capsys: pytest.CaptureFixture[str], working: Path) -> None:
    (working / "empty").mkdir()
    hugging_face(working / "model")

    def told(*argv: str) -> str:
        assert main(["train", "slime", "--config", WHODUNIT, "--dry-run", *argv]) == 1
        return capsys.readouterr().out

    plan = told("--model", "model", "--load", "empty", "--", "--eps-clip", "0.3", "--use-tis")
    assert f"# {WOULD_NOT_START}: --load {working / 'empty'}: no checkpoint is there" in plan
    assert "# not checked by slime: --eps-clip, --use-tis, " in plan
    assert "--ref-load Qwen/Qwen3-4B: slime needs a folder" in told("--model", "Qwen/Qwen3-4B")
    assert "-load " not in told("--model", "model").partition("\n# ")[2]


@pytest.mark.slow
def test_slime_that_reads_no_routing_replays_none(orl: Orl, tmp_path: Path) -> None:
    """slime 0.3.0 has the option, and no `Sample.append_response_tokens`."""
    replay = "--use-rollout-routing-replay"
    assert replay in orl.words()
    old = shutil.copytree(STAND_INS["slime"], tmp_path / "old")
    (old / "slime" / "utils" / "types.py").unlink()
    assert replay not in orl.words("--slime-path", str(old))


def test_asked_wandb_without_a_key_is_offline(orl: Orl, working: Path) -> None:
    plan = orl.planned("--wandb-project", "mine", "--tensorboard")
    words = words_of(plan)
    after = {name: words[words.index(name) + 1] for name in ("--wandb-project", "--wandb-group", "--wandb-mode")}
    assert after == {"--wandb-project": "mine", "--wandb-group": "run", "--wandb-mode": "offline"}
    assert words[words.index("--wandb-dir") + 1] == str(working / "runs" / "run")
    assert "# there is no key of Weights & Biases" in plan
    assert "--use-tensorboard" in words
    assert f"TENSORBOARD_DIR={working / 'runs' / 'run' / 'tensorboard'}" in words
    assert "wandb login" in orl.refused("--wandb-mode", "online")


def test_a_model_folder_that_is_absent_is_named(orl: Orl) -> None:
    told = "# it would not start on this machine: --model ./none: no such folder"
    assert told in orl.planned("--model", "./none", "--model-args", "qwen3-0.6B")

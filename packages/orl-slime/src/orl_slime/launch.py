"""`orl train slime`: the command line made of slime's own parts, checked and run by `orl_cluster.launch.launch`.

It imports nothing of slime: the Python that has it is asked (`probe`) and run.
"""

from __future__ import annotations

from pathlib import Path

from orl_cluster.launch import launch
from orl_cluster.launch.layout import layout_of
from orl_core.config import TrainerConfig
from orl_core.errors import ConfigError, boundary
from orl_rollout.run_folder.contract import Run
from orl_rollout.signals import children

from orl_slime import args

SLIME = launch.Named(
    name="slime",
    unknown="slime, Megatron and SGLang have no option {}, which slime would ignore",
    memory="what lowers memory: --max-tokens-per-gpu, --max-context-len, fewer `max_turns`; after `--`: "
    "--context-parallel-size, --sglang-mem-fraction-static 0.5, --optimizer-cpu-offload",
)


def plan(run: Run) -> list[str]:
    """The command that `train` would run, to be read or pasted into a shell.

    Raises:
        ConfigError: it cannot be run like this; one line says why.
    """
    return launch.plan_of(command_of(run))


def train(run: Run) -> None:
    """Train to the end.

    Raises:
        ConfigError: the run cannot start; one line says why.
        OrlError: slime ended with an error; names the last one in its log.
    """
    launch.run_to_end(command_of(run), run)


def command_of(run: Run) -> launch.Command:
    """slime's command line for `run`, with what its own environment and parser say of it.

    Raises:
        ConfigError: no slime, an option that nothing knows, or sizes that do not fit together.
    """
    trainer = run.config.trainer
    python, about = launch.located("slime", run)
    root = Path(about.root)
    request = launch.request_of("slime", run, layout_of(trainer, about.gpus))
    argv = args.arguments(request, model_args(trainer, root))
    command = launch.Command(
        trainer=SLIME,
        python=python,
        root=root,
        script="train_async.py" if trainer.asynchronous else "train.py",
        argv=tuple(argv),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        layout=request.layout,
    )
    return launch.checked(command, run)


def model_args(trainer: TrainerConfig, root: Path) -> list[str]:
    """The model's shape: the array MODEL_ARGS of the script named by `--model-args`, a path or a name of slime's own.

    Raises:
        ConfigError: none is named, there is no such script, or it sets no MODEL_ARGS.
    """
    script = launch.model_script(trainer, root / "scripts" / "models", ".sh")
    printed = 'source "$1" >/dev/null && printf "%s\\0" "${MODEL_ARGS[@]}"'
    with boundary(ConfigError, f"--model-args {script}"):
        asked = children.run(["bash", "-c", printed, "bash", str(script)], timeout=30)
    words = [word for word in asked.stdout.split("\0") if word]
    if asked.returncode or not words:
        raise ConfigError(f"--model-args {script}: it sets no MODEL_ARGS: {asked.stderr.strip()[-200:]}")
    return words

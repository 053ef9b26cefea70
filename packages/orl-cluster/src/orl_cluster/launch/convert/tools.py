"""Conversion tools that trainers on a cluster have in common, and their arguments.

The names of scripts and options are those of the trainers. Options after `--` go to the tool as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct, field
from orl_core.errors import ConfigError
from orl_core.names import download_of
from orl_rollout.run_folder.checkpoint import Format, checkpoint_in, weights_in
from orl_rollout.run_folder.config_file import read_object
from orl_rollout.run_folder.contract import Conversion

from orl_cluster.launch.argv import Options, merge, names_in
from orl_cluster.launch.options import cluster_of

OWNED = {
    "--hf-checkpoint": "the folder to convert",
    "--save": "--output",
    "--input-dir": "the folder to convert",
    "--output-dir": "--output",
    "--origin-hf-dir": "--model",
    "--force": "orl: the output is a new folder",
}


class Tool(Struct, frozen=True, kw_only=True):
    """A tool: `script` in the trainer's checkout, its arguments, the format that it `makes`, the GPUs that it needs."""

    script: str
    argv: tuple[str, ...]
    makes: Format
    gpus: int = 0
    environment: dict[str, str] = field(default_factory=dict[str, str])


def to_megatron(conversion: Conversion, shape: list[str]) -> Tool:
    """Return the tool from Hugging Face to Megatron; `shape` has the options of the model's shape."""
    if conversion.trainer.model:
        raise ConfigError(f"--model {conversion.trainer.model}: {conversion.source} is the model. Leave it out")
    ours: Options = {"--hf-checkpoint": conversion.source.absolute(), "--save": conversion.output.absolute()}
    return Tool(
        script="tools/convert_hf_to_torch_dist.py",
        argv=(*shape, *_assembled(conversion, ours)),
        makes="megatron",
        gpus=cluster_of(conversion.trainer).num_gpus or 1,
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    )


def to_hugging_face(conversion: Conversion) -> Tool:
    """Return the tool from FSDP or Megatron. The latter cuts the rows with which Megatron pads the vocabulary."""
    weights, model = weights_in(conversion.source), _origin(conversion)
    ours: Options = {
        "--input-dir": weights.absolute(),
        "--output-dir": conversion.output.absolute(),
        "--origin-hf-dir": model.absolute(),
    }
    if conversion.checkpoint.format == "fsdp":
        return Tool(script="tools/convert_fsdp_to_hf.py", argv=_assembled(conversion, ours), makes="hf")
    if not (weights / "common.pt").is_file():
        raise ConfigError(f"{weights}: no common.pt is in it. The tool reads Megatron's torch_dist format alone")
    argv = _assembled(conversion, {**ours, "--vocab-size": _vocabulary(model)})
    return Tool(script="tools/convert_torch_dist_to_hf.py", argv=argv, makes="hf")


def _assembled(conversion: Conversion, ours: Options) -> tuple[str, ...]:
    for name in names_in(conversion.extra):
        if name in OWNED:
            raise ConfigError(f"{name} is set by {OWNED[name]}")
    return tuple(merge(ours, {}, conversion.extra))


def _origin(conversion: Conversion) -> Path:
    """Return the folder of the Hugging Face checkpoint that training began with, which has config and tokenizer."""
    trainer, options = conversion.trainer, cluster_of(conversion.trainer)
    for option, value in (("--num-gpus", options.num_gpus), ("--model-args", options.model_args)):
        if value:
            raise ConfigError(f"{option} {value}: only a conversion to Megatron uses it. Leave it out")
    named = trainer.model or conversion.checkpoint.model
    if not named:
        raise ConfigError(
            f"{conversion.source}: no note tells its model. Name the Hugging Face checkpoint that training began with: "
            "--model FOLDER"
        )
    model = Path(named).expanduser()
    checkpoint = checkpoint_in(model) if model.is_dir() else None
    if checkpoint is None or checkpoint.format != "hf":
        get = download_of(named, ", or get it: ")
        raise ConfigError(f"--model {named}: no folder with a Hugging Face checkpoint. Name one{get}")
    return model


def _vocabulary(model: Path) -> int | None:
    """Return the rows of the model's embedding, as its config.json tells; None if it does not."""
    described: dict[str, Any] = read_object(model / "config.json")
    text: dict[str, Any] = described.get("text_config") or {}
    size = described.get("vocab_size") or text.get("vocab_size")
    return size if isinstance(size, int) else None

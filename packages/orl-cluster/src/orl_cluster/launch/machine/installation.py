"""Find a trainer's Python and checkout, and leave out the GPUs that other processes use.

That Python is only ever run, with the environment of this process: nothing is installed there.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct, field, structs
from orl_core import ConfigError, TrainerConfig

from orl_cluster.launch.machine import probe
from orl_cluster.launch.machine.probe import Findings, Lacking
from orl_cluster.launch.machine.ray_cluster import environment_for, ray_address
from orl_cluster.launch.options import CheckoutOptions, ClusterOptions, cluster_of

VARIABLE, VISIBLE = "ORL_TRAINER_PYTHON", "CUDA_VISIBLE_DEVICES"
UNUSED = 0.9  # of a GPU's memory: with as much free, nothing but a driver or a desktop uses it


class Installation(Struct, frozen=True, kw_only=True):
    """A trainer in its own Python, and the findings of the adapter's probe there.

    `environment` has PYTHONPATH with the checkouts that the user names, and CUDA_VISIBLE_DEVICES if GPUs are left out;
    `note` says why. `missing` says why there is no such Python. Then the command line is only shown.
    """

    trainer: str
    python: str
    findings: Findings
    environment: dict[str, str] = field(default_factory=dict[str, str])
    note: str = ""
    missing: str = ""


def find_installation(name: str, trainer: TrainerConfig, python: str | None) -> Installation:
    """Return the installation of the trainer `name`; one that is `missing` if no Python is named, or it has none.

    The Python is `python`, else $ORL_TRAINER_PYTHON, else this one if it has the trainer.
    """
    path = _search_path(name, trainer)
    named = python or os.environ.get(VARIABLE) or (sys.executable if find_spec(name) else None)
    whole = str(Path(shutil.which(named) or named).absolute()) if named else "python3"
    try:
        if not named:
            raise Lacking(f"no Python that has {name} is named: give --python, or set {VARIABLE}")
        findings = probe.ask(name, whole, [], environment_for(whole, path))
        if not findings.root:
            raise Lacking(
                f"{named}: this Python finds no checkout of {name} with train.py. Install one there (-e), name it with "
                f"--{name}-path, or name another Python with --python"
            )
    except Lacking as fault:
        findings = Findings(root=trainer.section(name, CheckoutOptions).path or name)
        return Installation(trainer=name, python=whole, findings=findings, environment=path, missing=str(fault))
    return Installation(trainer=name, python=whole, findings=findings, environment=path)


def _search_path(package: str, trainer: TrainerConfig) -> dict[str, str]:
    """Return PYTHONPATH with the checkouts of `package` and Megatron-LM that are named in front; else nothing."""
    named = (f"--{package}-path", trainer.section(package, CheckoutOptions).path, "train.py")
    folders: list[str] = []
    for option, value, held in (named, ("--megatron-path", cluster_of(trainer).megatron_path, "megatron")):
        if value is None:
            continue
        folder = Path(value).expanduser().absolute()
        if not (folder / held).exists():
            raise ConfigError(f"{option} {value}: no {held} is in it. Name the folder of a checkout")
        folders.append(str(folder))
    inherited = [path] if (path := os.environ.get("PYTHONPATH")) else []
    return {"PYTHONPATH": os.pathsep.join([*folders, *inherited])} if folders else {}


def without_busy_gpus(installation: Installation, options: ClusterOptions) -> Installation:
    """Return `installation` without the GPUs that other processes use, unless the user names a number or all are used.

    The GPUs of a cluster that runs already, and of several nodes, are not those of this machine.
    """
    gpus = installation.findings.gpu_memory
    unused = [index for index, gpu in enumerate(gpus) if gpu.free is not None and gpu.free >= UNUSED * gpu.total]
    if options.num_gpus or (options.actor_nodes or 1) > 1 or len(unused) in (0, len(gpus)) or ray_address(os.environ):
        return installation
    visible = os.environ.get(VISIBLE, "").split(",")
    names = [visible[index] if visible[0] else str(index) for index in unused]
    return structs.replace(
        installation,
        findings=structs.replace(installation.findings, gpus=len(unused)),
        environment={**installation.environment, VISIBLE: ",".join(names)},
        note=f"{len(gpus) - len(unused)} of {len(gpus)} GPUs are left out, because other processes use their memory. "
        "--num-gpus takes the first ones, used or not",
    )

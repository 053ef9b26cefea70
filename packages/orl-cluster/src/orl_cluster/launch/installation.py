"""Finds the installation of a trainer: its Python, its checkout, and what the adapter's probe finds there."""

from __future__ import annotations

import os

from msgspec import structs
from orl_core.config import TrainerConfig
from orl_core.errors import ConfigError

from orl_cluster.launch import probe
from orl_cluster.launch.find_python import NotInstalledError, find_python, search_path
from orl_cluster.launch.layout import Installation
from orl_cluster.launch.options import CheckoutOptions, ClusterOptions
from orl_cluster.launch.probe import Findings
from orl_cluster.launch.ray import environment_for
from orl_cluster.launch.ray_address import ray_address

VISIBLE = "CUDA_VISIBLE_DEVICES"
UNUSED = 0.9  # of a GPU's memory: with as much free, nothing but a driver or a desktop uses it


def find_installation(name: str, trainer: TrainerConfig, python: str | None) -> Installation:
    """Return the installation of the trainer `name`; without any, one that is `missing`.

    Raises:
        ConfigError: the named Python or checkout has no such trainer, or the trainer has no checkout.
    """
    path = search_path(name, trainer)
    try:
        found_python = find_python(name, python, path)
    except NotInstalledError as exc:
        checkout = trainer.section(name, CheckoutOptions).path or name
        findings = Findings(root=checkout)
        return Installation(trainer=name, python="python3", found=findings, environment=path, missing=str(exc))
    found = probe.ask(name, found_python, [], environment_for(found_python, path))
    if not found.root:
        raise ConfigError(
            f"{found_python}: {name} is installed without train.py: install it from a checkout (-e), or name the "
            f"checkout with --{name}-path"
        )
    return Installation(trainer=name, python=found_python, found=found, environment=path)


def without_busy_gpus(installation: Installation, options: ClusterOptions) -> Installation:
    """Return `installation` without the GPUs that other processes use, unless the user names a number or all are used.

    The GPUs of a cluster that runs already, and of several nodes, are not those of this machine.
    """
    gpus = installation.found.gpu_memory
    unused = [index for index, gpu in enumerate(gpus) if gpu.free is not None and gpu.free >= UNUSED * gpu.total]
    if options.num_gpus or (options.actor_nodes or 1) > 1 or len(unused) in (0, len(gpus)) or ray_address(os.environ):
        return installation
    given = os.environ.get(VISIBLE, "").split(",")
    names = [given[index] if given[0] else str(index) for index in unused]
    return structs.replace(
        installation,
        found=structs.replace(installation.found, gpus=len(unused)),
        environment={**installation.environment, VISIBLE: ",".join(names)},
        note=f"{len(gpus) - len(unused)} of {len(gpus)} GPUs are left out, because other processes use their memory. "
        "--num-gpus takes the first ones, used or not",
    )

"""Finds the installation of a trainer: its Python, its checkout and the findings of the adapter's probe there."""

from __future__ import annotations

from orl_core.config import TrainerConfig
from orl_core.errors import ConfigError

from orl_cluster.launch import probe
from orl_cluster.launch.find_python import NotInstalledError, find_python, search_path
from orl_cluster.launch.layout import Installation
from orl_cluster.launch.probe import Findings
from orl_cluster.launch.ray import environment_for


def find_installation(name: str, trainer: TrainerConfig, python: str | None) -> Installation:
    """Return the installation of the trainer `name`; without any, one that is `missing`.

    Raises:
        ConfigError: the named Python or checkout has no such trainer, or the trainer has no checkout.
    """
    path = search_path(name, trainer)
    try:
        found_python = find_python(name, python, path)
    except NotInstalledError as exc:
        checkout = getattr(trainer, f"{name}_path") or name
        findings = Findings(root=checkout)
        return Installation(trainer=name, python="python3", found=findings, path=path, missing=str(exc))
    found = probe.ask(name, found_python, [], environment_for(found_python, path))
    if not found.root:
        raise ConfigError(
            f"{found_python}: {name} is installed without train.py: install it from a checkout (-e), or name the "
            f"checkout with --{name}-path"
        )
    return Installation(trainer=name, python=found_python, found=found, path=path)

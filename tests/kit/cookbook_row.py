"""A row of tasks.jsonl as the cookbook's prepare_tasks.py writes it: its metadata is a JSON text."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from orl_core.task import Task


def cookbook_row(task: Task) -> dict[str, Any]:
    """Return the cookbook's row of `task`. Its fields and their order are those of the cookbook's script."""
    spec_hash = hashlib.sha256(json.dumps(task.task_spec, sort_keys=True).encode()).hexdigest()[:16]
    metadata = {
        "env_name": task.env_name,
        "deployment_name": task.deployment_name,
        "server_name": task.server_name,
        "environment_name": task.environment_name,
        "namespace": task.namespace,
        "split": task.split,
        "task_spec": task.task_spec,
        "task_hash": spec_hash,
    }
    return {"prompt": f"[{task.env_name}:{task.split}:{spec_hash}]", "label": "", "metadata": json.dumps(metadata)}

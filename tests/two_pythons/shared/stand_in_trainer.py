"""A stand-in for a trainer's train.py: leaves what it was given where the test looks, then ends as it is told."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

argv = sys.argv[1:]
folder = Path(json.loads(Path(argv[argv.index("--custom-config-path") + 1]).read_text(encoding="utf-8"))["orl_folder"])
seen = {"argv": argv, "environment": dict(os.environ), "folder": str(Path.cwd()), "process": os.getpid()}
(folder / "seen.json").write_text(json.dumps(seen), encoding="utf-8")
attempts = [
    *json.loads((folder / "attempts.json").read_text("utf-8") if (folder / "attempts.json").is_file() else "[]"),
    argv,
]
(folder / "attempts.json").write_text(json.dumps(attempts), encoding="utf-8")
rows = [
    {"step": 0, "kind": "eval", "seconds": 1.0, "Org/Env/success": 0.25, "Org/Env/rollouts": 4},
    {"step": 1, "kind": "train", "seconds": 1.0, "Org/Env/success": 0.5, "Org/Env/rollouts": 4},
    {"step": 1, "kind": "eval", "seconds": 1.0, "Org/Env/success": 0.75, "Org/Env/rollouts": 4},
]
with (folder / "metrics.jsonl").open("a", encoding="utf-8") as metrics:
    metrics.writelines(json.dumps(row) + "\n" for row in rows)
ends = os.environ.get("STAND_IN_ENDS", "")
if not ends.startswith("recovers"):
    saved = Path(argv[argv.index("--save") + 1])
    fsdp = "--train-backend" in argv and argv[argv.index("--train-backend") + 1] == "fsdp"
    number = str(len(attempts) - (not fsdp))  # Megatron's count of steps begins at 0
    (saved / f"iter_{number:0>7}" / ("model" if fsdp else "")).mkdir(parents=True, exist_ok=True)
    (saved / "latest_checkpointed_iteration.txt").write_text(number, encoding="utf-8")
print("trained", flush=True)
NO_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
match ends:
    case "memory":
        print(NO_MEMORY, flush=True)
        sys.exit(1)
    case "recovers":  # lacks memory twice; a checkpoint is there from the second time on
        if len(attempts) == 2:
            saved = Path(argv[argv.index("--save") + 1])
            (saved / "iter_0000001").mkdir(parents=True)
            (saved / "latest_checkpointed_iteration.txt").write_text("1", encoding="utf-8")
        if len(attempts) < 3:
            sys.exit(NO_MEMORY)
    case "recovers, then fails":
        sys.exit(NO_MEMORY if len(attempts) == 1 else "ValueError: a fault of another kind")
    case "engine dies":
        if len(attempts) < 3:
            pool = "HTTPConnectionPool(host='10.0.0.1', port=15000)"
            sys.exit(
                "Traceback (most recent call last):\n"
                "ray.exceptions.RayTaskError(ConnectionError): ray::SGLangEngine.resume_memory_occupation() (pid=1)\n"
                f"requests.exceptions.ConnectionError: {pool}: Max retries exceeded with url: "
                "/resume_memory_occupation (Caused by NewConnectionError: [Errno 111] Connection refused)"
            )
    case "interrupted":
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)
    case "telling":
        print(dict(os.environ), flush=True)
    case "waits":
        time.sleep(600)

"""What a stand-in's train.py does: leaves what it was given where the test looks, then ends as it is told."""

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
rows = [
    {"step": 0, "kind": "eval", "seconds": 1.0, "Org/Env/success": 0.25, "Org/Env/rollouts": 4},
    {"step": 1, "kind": "train", "seconds": 1.0, "Org/Env/success": 0.5, "Org/Env/rollouts": 4},
    {"step": 1, "kind": "eval", "seconds": 1.0, "Org/Env/success": 0.75, "Org/Env/rollouts": 4},
]
(folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
saved = Path(argv[argv.index("--save") + 1])
fsdp = "--train-backend" in argv and argv[argv.index("--train-backend") + 1] == "fsdp"
number = "1" if fsdp else "0"  # of the first step: Megatron's count begins at 0
(saved / f"iter_{number:0>7}" / ("model" if fsdp else "")).mkdir(parents=True)
(saved / "latest_checkpointed_iteration.txt").write_text(number, encoding="utf-8")
print("trained", flush=True)
match os.environ.get("STAND_IN_ENDS"):
    case "memory":
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", flush=True)
        sys.exit(1)
    case "interrupted":
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)
    case "telling":
        print(dict(os.environ), flush=True)
    case "waits":
        time.sleep(600)

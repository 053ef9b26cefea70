"""Print the medians of the steps of runs, but for the first two (the first one of big ones), and what evaluations found."""
import json, statistics, sys
from pathlib import Path
for name in sys.argv[1:] or sorted(p.name for p in Path("runs").iterdir()):
    file = Path("runs", name, "metrics.jsonl")
    if not file.is_file():
        print(name, "no metrics"); continue
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    steps = [one for one in lines if one["kind"] == "train"]
    used = steps[2:] if len(steps) > 5 else steps[1:]
    med = lambda key: statistics.median([one[key] for one in used if key in one] or [float("nan")])
    print(f"{name:10} n={len(used)}", *(f"{key.split('_sec')[0]}={med(key):.2f}" for key in ("rollout_seconds", "train_seconds", "weight_sync_seconds", "step_seconds")),
          f"mem={max([one.get('train_memory_gib', 0) for one in steps] or [0]):.1f} diff={max([one.get('logprob_difference', 0) for one in steps] or [0]):.4f} oom={sum(one.get('out_of_memory', 0) for one in steps)} changed={[one.get('weights_changed') for one in steps[:4]]} gpu={med('gpu_utilization'):.2f}")
    ev = [(one["step"], round(next((v for k, v in one.items() if k.endswith("/success") or k == "success"), -1), 3)) for one in lines if one["kind"] == "eval"]
    if ev: print("   eval", ev)
    print("   steps", [round(one["step_seconds"], 2) for one in steps][:14])

"""`python -m benchmarks.night.checkpoint FOLDER`: a real tokenizer, and the ids of the call that the engine makes.

A process of its own, so that the night itself imports no transformers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

VOCABULARY = 2_000
CALL = '<tool_call>\n{"name": "step", "arguments": {}}\n</tool_call><|im_end|>'
ACTION = "action.json"  # ids of CALL


def write(folder: Path) -> None:
    """Write the tokenizer and the ids."""
    from benchmarks.world import hugging_face

    tokenizer = hugging_face(VOCABULARY)
    tokenizer.save_pretrained(folder)
    ids: list[int] = tokenizer.encode(CALL, add_special_tokens=False)
    (folder / ACTION).write_text(json.dumps(ids), encoding="utf-8")


if __name__ == "__main__":
    made = Path(sys.argv[1])
    made.mkdir(parents=True, exist_ok=True)
    write(made)

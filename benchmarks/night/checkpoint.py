"""`python -m benchmarks.night.checkpoint FOLDER`: a random model whose tokenizer is real, in a process that has torch.

Its checkpoints are some megabytes with their optimizer, so that one of them can fill a small disk.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.world import hugging_face

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

VOCABULARY = 2_000
CALL = '<tool_call>\n{"name": "step", "arguments": {}}\n</tool_call><|im_end|>'
ACTION = "action.json"  # ids of CALL


def write(folder: Path, *, weights: bool) -> None:
    """Write the tokenizer and the ids of the call that the engine makes; with `weights`, a model too."""
    tokenizer = hugging_face(VOCABULARY)
    tokenizer.save_pretrained(folder)
    ids: list[int] = tokenizer.encode(CALL, add_special_tokens=False)
    (folder / ACTION).write_text(json.dumps(ids), encoding="utf-8")
    if weights:
        write_model(folder, tokenizer)


def write_model(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write a random model of Qwen3's architecture."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    end, padding = (tokenizer.get_vocab()[token] for token in ("<|im_end|>", "<|endoftext|>"))
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 128) * 128,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        intermediate_size=384,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=padding,
        dtype="float32",
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    made = Path(sys.argv[1])
    made.mkdir(parents=True, exist_ok=True)
    write(made, weights="--weights" in sys.argv)

"""A tiny model that makes the calls of one environment: a tokenizer for its texts, and a warm start on its episodes.

It must not know how the episodes were played. They come from a journal, as ids with their loss mask.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from tests.kit.tokenizers import build, template

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orl_core.datum import Datum
    from torch import Tensor

CONTEXT = 16_384
STEPS = 300
WINDOW = 64  # ids that an attention reaches: a call depends on nothing that is further away
READ = (".py", ".md", ".json")


def write_tokenizer(folder: Path, source: Path) -> PreTrainedTokenizerFast:
    """Write a tokenizer that knows the words of the files in `source`, with Qwen3's template."""
    files = [path for path in sorted(source.rglob("*")) if path.suffix in READ and path.stat().st_size < 200_000]
    tokenizer = build(
        template("qwen3_instruct_2507"), texts=[path.read_text("utf-8", errors="replace") for path in files]
    )
    tokenizer.model_max_length = CONTEXT
    tokenizer.save_pretrained(folder)
    return tokenizer


def windows(data: Sequence[Datum]) -> list[tuple[Tensor, Tensor]]:
    """Return each action of `data` with the ids before it, and which of them are sampled."""
    found: list[tuple[Tensor, Tensor]] = []
    for datum in data:
        ids = [*datum.prompt, *datum.response]
        sampled = [*(0 for _ in datum.prompt), *datum.sampled]
        begins = [place for place in range(1, len(ids)) if sampled[place] > sampled[place - 1]]
        for begin, end in zip(begins, [*begins[1:], len(ids)], strict=True):
            count = sum(sampled[begin:end])
            part = slice(max(0, begin - 2 * WINDOW), begin + count)
            learnt = [0] * (begin - part.start) + [1] * count
            found.append((torch.tensor(ids[part]), torch.tensor(learnt, dtype=torch.bool)))
    return found


def write_model(folder: Path, tokenizer: PreTrainedTokenizerFast, data: Sequence[Datum] = (), seed: int = 0) -> None:
    """Write a seeded model that has read `data` a few times, if any, with a loss on the sampled ids alone."""
    disable_progress_bar()
    torch.set_num_threads(1)  # a second thread gains nothing on small tensors
    torch.manual_seed(seed)
    end, pad = (tokenizer.get_vocab()[text] for text in ("<|im_end|>", "<|endoftext|>"))
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=48,
        intermediate_size=192,
        use_sliding_window=True,
        sliding_window=WINDOW,
        max_window_layers=0,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=end,
        pad_token_id=pad,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    chance, actions = random.Random(seed), windows(data)
    for _ in range(STEPS if data else 0):
        ids, learnt = chance.choice(actions)
        shown = model.model(input_ids=ids[None, :-1]).last_hidden_state[0]
        loss = cross_entropy(model.lm_head(shown[learnt[1:]]), ids[1:][learnt[1:]])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)

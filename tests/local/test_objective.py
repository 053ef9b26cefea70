"""What the objective is made of: the correction by hand, and logprobs against the model's own logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec import structs
from orl_core.errors import ConfigError
from orl_local.batch import batch_of, members_of
from orl_local.objective import Ids, weights_of
from orl_local.scoring import Scorer
from transformers import AutoModelForCausalLM, CohereConfig, Gemma2Config, Qwen3MoeConfig

from tests.local.updates import SETTINGS, rows_for

ROLLOUTS = torch.tensor([0, 0, 1, 1, 0, 0])
DIFFERENCES = torch.tensor([0.5, 0.0, -0.2, 0.1, 0.25, 0.25])  # 1.0 and -0.1 in the two rollouts


@pytest.mark.parametrize(
    ("mode", "logs"),
    [
        ("off", (0.0,) * 6),
        ("token_mask", (None, 0.0, -0.2, 0.1, 0.25, 0.25)),
        ("token_truncate", (0.3, 0.0, -0.2, 0.1, 0.25, 0.25)),
        ("sequence_mask", (None, None, -0.1, -0.1, None, None)),
        ("sequence_truncate", (0.3, 0.3, -0.1, -0.1, 0.3, 0.3)),
    ],
)
def test_ids_are_weighed_by_both_logprobs(mode: str, logs: tuple[float | None, ...]) -> None:
    zeros = torch.zeros(6)
    ids = Ids(advantages=zeros, sampled=zeros, share=zeros, rollout=ROLLOUTS, rollouts=2)
    settings = structs.replace(SETTINGS, correction=mode, correction_cap=torch.tensor(0.3).exp().item())
    expected = torch.tensor([0.0 if one is None else torch.tensor(one).exp() for one in logs])
    torch.testing.assert_close(weights_of(DIFFERENCES, ids, settings), expected)


SHAPE: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "moe_intermediate_size", "head_dim"), 16),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "num_hidden_layers"), 2),
    "vocab_size": 512,
}
MIXTURE = Qwen3MoeConfig(**SHAPE, num_experts=4, num_experts_per_tok=2, output_router_logits=True)


CAPPED = Gemma2Config(**SHAPE, final_logit_softcapping=2.0, initializer_range=1.0)


@pytest.mark.parametrize("config", [MIXTURE, CAPPED, CohereConfig(**SHAPE, logit_scale=0.1)])
def test_scores_are_those_of_the_models_logits(config: Any) -> None:
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    batch = batch_of(members_of([rows_for(model)], SETTINGS)[0], torch.device("cpu"))
    found = Scorer(model, 0.7)(batch)
    output = model(batch.token_ids, attention_mask=batch.mask)
    own = (output.logits / 0.7).log_softmax(-1)[batch.row, batch.column - 1]
    torch.testing.assert_close(
        found.logprobs, own.gather(1, batch.token_ids[batch.row, batch.column][:, None])[:, 0], atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(found.entropies, -(own.exp() * own).sum(-1), atol=1e-5, rtol=1e-5)
    if config is MIXTURE:
        torch.testing.assert_close(found.router_loss, output.aux_loss)


def test_model_that_changes_its_logits_is_refused() -> None:
    model = AutoModelForCausalLM.from_config(CAPPED, dtype=torch.float32)

    def shift(*given: Any) -> None:
        given[-1].logits.add_(torch.arange(512.0))

    model.register_forward_hook(shift)
    with pytest.raises(ConfigError, match="gemma2"):
        Scorer(model, 1.0)

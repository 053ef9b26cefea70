"""slime's loss of single ids and its KL give the golden gradients. The mean over ids is restated here."""

from __future__ import annotations

import pytest
import torch
from orl_rollout.training.rows import Row, trained_ids
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.kit.gradients import MAX_NORM, MODEL, SAME, apart, gradients_of, load_cases
from tests.slime.host import of_slime

pytestmark = pytest.mark.slime


def logprobs(model: PreTrainedModel, row: Row) -> Tensor:
    prompt, response = row.datum.prompt, row.datum.response
    logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]


@pytest.mark.parametrize("name", ["uncorrected", "kl", "kl_without_ratio"])
def test_loss_of_slime_has_the_golden_gradients(name: str) -> None:
    policy_loss, kl = (of_slime(f"slime.utils.ppo_utils.compute_{one}") for one in ("policy_loss", "approx_kl"))
    torch.set_num_threads(1)
    case, model = load_cases()[name], AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32")
    optimizer = torch.optim.AdamW(model.parameters(), case.lr, (0.9, 0.99), 1e-8, 0.0)
    updates = case.steps[0]
    with torch.no_grad():
        old = [[logprobs(model, row) for row in rows] for rows in updates]
    for of, rows, before in zip(("first", "second"), updates, old, strict=True):
        for row, past in zip(rows, before, strict=True):
            now = logprobs(model, row)
            with torch.compiler.set_stance("force_eager"):
                loss, _ = policy_loss(past - now, torch.tensor(row.advantages), *case.clip)
                loss = loss + case.beta * kl(now, past, "k3", (now - past).exp() if case.kl_ratio else None)
            ((loss * torch.tensor(row.datum.loss_mask)).sum() / sum(map(trained_ids, updates)) * 2).backward()
        assert apart(gradients_of(model), case.tensors(of)) < SAME
        clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()

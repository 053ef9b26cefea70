"""The check after a sync: the engine's weights have changed exactly where the trainer's have.

SGLang shows a checksum of each tensor that it computes with. A checksum tells a change, and not to what. So the trainer
hashes each tensor as it is sent, and compares sets: the tensors of the engine that changed are those that the changed
ones feed. This finds weights that do not arrive, a stale tensor, and adapters that are not applied. It needs no bound:
bf16 kernels differ in logprobs, not in the bits of weights. Two tensors that changed places have both changed; they are
found by the logprobs of what the run sampled (`importance.check_difference`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from msgspec import Struct
from orl_core.errors import EngineError
from orl_rollout.logs import logger_of
from torch import Tensor

from orl_trl.sglang_control import SglangControl

logger = logger_of("orl")

SENT = torch.bfloat16  # the type of weights as they are sent
METRIC = "weights_changed"  # tensors of the engine that changed in the latest sync
Checksums = dict[str, str]  # of one rank, by the engine's name of the tensor
FUSED = {  # parts of names: what the trainer has apart is one tensor in the engine
    **dict.fromkeys((".q_proj.", ".k_proj.", ".v_proj."), ".qkv_proj."),
    **dict.fromkeys((".gate_proj.", ".up_proj."), ".gate_up_proj."),
}
HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"  # one tensor of the engine where they are tied
_CHUNK = 1 << 20  # elements that are hashed at once
_PRIME = 1_000_003


def fingerprints(weights: Iterable[tuple[str, Tensor]]) -> dict[str, int]:
    """Return a hash of each weight as it is sent, by name. One changed bit always changes it.

    Sums of bits times odd factors, modulo 2^64: linear, and computed where the weight is.
    """
    names: list[str] = []
    hashes: list[Tensor] = []
    factors: dict[torch.device, Tensor] = {}
    for name, weight in weights:
        if weight.device not in factors:
            drawn = torch.randint(-(2**62), 2**62, (_CHUNK,), generator=torch.Generator().manual_seed(0))
            factors[weight.device] = (2 * drawn + 1).to(weight.device)
        names.append(name)
        hashes.append(_hash(weight.detach(), factors[weight.device]).cpu())
    return dict(zip(names, torch.stack(hashes).tolist(), strict=True)) if hashes else {}


def _hash(weight: Tensor, factors: Tensor) -> Tensor:
    """Return the hash of one weight, int64 [], without a copy of it on another device."""
    sent = weight.to(SENT).view(torch.int16) if weight.is_floating_point() else weight
    total = factors.new_zeros(())
    for chunk in sent.reshape(-1).split(_CHUNK):
        total = total * _PRIME + (chunk.long() * factors[: chunk.numel()]).sum()
    return total


def engine_name(name: str, known: Collection[str]) -> str | None:
    """Return the engine's name of the tensor that a weight of the trainer feeds; None if none of `known` is it."""
    if name in known:
        return name
    fused = next((name.replace(part, whole) for part, whole in FUSED.items() if part in name), name)
    if fused in known:
        return fused
    return EMBEDDINGS if name == HEAD and EMBEDDINGS in known else None


class _Seen(Struct, frozen=True, kw_only=True):
    """Fingerprints of the trainer, and the checksums of each rank of the engine, after one sync."""

    sent: dict[str, int]
    shown: tuple[Checksums, ...]


class WeightCheck:
    """Compares the changes of trainer and engine from sync to sync.

    `exact`: the engine holds what it is sent, bit by bit, so each changed weight shows. Otherwise (it quantises, or has
    another type) a small change may not, but some of many do.
    """

    def __init__(self, control: SglangControl, *, exact: bool) -> None:
        self._control = control
        self._exact = exact
        self._first: _Seen | None = None  # of this engine
        self._last: _Seen | None = None
        self._said = False

    def restarted(self) -> None:
        """Forget the engine's checksums: another process begins anew."""
        self._first = self._last = None

    def after_sync(self, sent: dict[str, int]) -> dict[str, float]:
        """Compare the changes since the sync before, and since the first: an engine must not go back to the base model.

        `sent` are the `fingerprints` of this sync. Return metrics.

        Raises:
            EngineError: other tensors changed in the engine than in the trainer.
        """
        shown = self._control.checksums()
        self._say_once(sent, shown)
        if not shown:
            self.restarted()
            return {}
        first, last, now = self._first, self._last, _Seen(sent=sent, shown=shown)
        self._first, self._last = first or now, now
        for before in filter(None, (last, first)):
            if fault := _difference(before, now, exact=self._exact and not _quantised(shown[0])):
                raise EngineError(
                    f"after a sync of weights, {fault}. SGLang does not compute with the weights of the trainer. "
                    "Continue from the last checkpoint with --load; if it happens again, set trainer.engine to "
                    "transformers"
                )
        return {METRIC: float(len(_changes(last.shown, shown).union))} if last else {}

    def _say_once(self, sent: Collection[str], shown: Sequence[Checksums]) -> None:
        """Say in one line what this engine cannot show."""
        if self._said:
            return
        self._said = True
        if not shown:
            logger.warning("SGLang shows no checksums of its weights: only logprobs of sampled token ids are compared")
        elif hidden := [name for name in sent if engine_name(name, shown[0]) is None]:
            logger.warning(
                "SGLang shows no checksum of %d of %d weights, such as %s", len(hidden), len(sent), hidden[0]
            )


class _Changes:
    """Names of the engine's tensors that changed: in any rank, and those that only some ranks changed."""

    def __init__(self, ranks: Sequence[set[str]], replicated: set[str]) -> None:
        self.union = set[str]().union(*ranks)
        self.stale = {name for name in self.union & replicated if not all(name in rank for rank in ranks)}


def _changes(old: Sequence[Checksums], new: Sequence[Checksums]) -> _Changes:
    ranks = [
        {name for name, value in now.items() if before.get(name) != value}
        for before, now in zip(old, new, strict=False)
    ]
    first, *others = old
    replicated = {name for name, value in first.items() if all(rank.get(name) == value for rank in others)}
    return _Changes(ranks, replicated)


def _quantised(shown: Checksums) -> bool:
    return any("scale" in name or "qweight" in name for name in shown)


def _difference(before: _Seen, now: _Seen, *, exact: bool) -> str:
    """Return how the changes of trainer and engine differ, in words; empty if they agree."""
    found, known = _changes(before.shown, now.shown), now.shown[0]
    changed = [name for name, value in now.sent.items() if before.sent.get(name) != value]
    fed = {name: engine_name(name, known) for name in now.sent}
    judged = {name for name in fed.values() if name is not None}
    expected = {name for name in map(fed.get, changed) if name is not None}
    missing = expected - found.union if exact else set[str]() if found.union & judged else expected
    if missing:
        return f"{len(missing)} of {len(expected)} changed tensors did not change in SGLang, such as {min(missing)}"
    if extra := (found.union & judged) - expected:
        return f"{len(extra)} tensors changed in SGLang and not in the trainer, such as {min(extra)}"
    if found.stale:
        return f"{len(found.stale)} tensors changed in some ranks of SGLang only, such as {min(found.stale)}"
    return ""

"""The check after a sync: the engine's weights have changed exactly where the trainer's have.

The engine shows a checksum of each tensor that it computes with. A checksum tells a change, and not to what. So the
trainer hashes each tensor as it is sent, and compares sets: the tensors of the engine that changed are those that the
changed ones feed. This finds weights that do not arrive, a stale tensor, and adapters that are not applied. It needs no
bound: bf16 kernels differ in logprobs, not in the bits of weights. Two tensors that changed places have both changed;
they are found by the logprobs of what the run sampled (`learner.Learner`). No torch here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from orl_core.errors import EngineError

METRIC = "weights_changed"  # tensors of the engine that changed in the latest sync
FUSED = {  # parts of names: what the trainer has apart is one tensor in the engine
    **dict.fromkeys((".q_proj.", ".k_proj.", ".v_proj."), ".qkv_proj."),
    **dict.fromkeys((".gate_proj.", ".up_proj."), ".gate_up_proj."),
}
HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"  # one tensor of the engine if they are tied


def engine_name(name: str, known: Collection[str]) -> str | None:
    """Return the engine's name of the tensor that a weight of the trainer feeds; None if none of `known` is it."""
    if name in known:
        return name
    fused = next((name.replace(part, whole) for part, whole in FUSED.items() if part in name), name)
    if fused in known:
        return fused
    return EMBEDDINGS if name == HEAD and EMBEDDINGS in known else None


class _Sync(NamedTuple):
    """Fingerprints of the trainer and checksums of the engine after one sync."""

    sent: dict[str, int]
    shown: dict[str, str]


class WeightCheck:
    """Compares the changes of trainer and `engine` from sync to sync.

    `exact`: the engine holds what it is sent, bit by bit, so each changed weight shows. Otherwise (it quantises, or has
    another type) a small change may not, but some of many do.
    """

    def __init__(self, engine: str, *, exact: bool) -> None:
        self._engine, self._exact = engine, exact
        self._before: tuple[_Sync, ...] = ()  # the first sync of this engine, and the latest

    def after_sync(self, sent: dict[str, int], shown: dict[str, str]) -> dict[str, float]:
        """Compare the changes since the sync before, and since the first: an engine must not go back to the base model.

        `sent` are the `fingerprints` of this sync, `shown` the engine's checksums. Return metrics.

        Raises:
            EngineError: other tensors changed in the engine than in the trainer.
        """
        now = _Sync(sent, shown)
        if not now.shown:
            self._before = ()
            return {}
        before, self._before = self._before, (*self._before[:1], now)
        exact = self._exact and not any("scale" in name or "qweight" in name for name in now.shown)
        for fault in filter(None, (_difference(sync, now, exact=exact) for sync in before)):
            raise EngineError(
                f"after a sync of weights, {fault}. {self._engine} does not compute with the weights of the trainer. "
                "Continue from the last checkpoint with --load. If it happens again, set `engine: transformers`"
            )
        return {METRIC: float(len(_changed(before[-1].shown, now.shown)))} if before else {}


def _changed(before: Mapping[str, object], now: Mapping[str, object]) -> set[str]:
    """Return the names whose value has changed."""
    return {name for name, value in now.items() if before.get(name) != value}


def _difference(before: _Sync, now: _Sync, *, exact: bool) -> str:
    """Return how the changes of trainer and engine differ, in words; empty if they agree."""
    fed = {name: engine_name(name, now.shown) for name in now.sent}
    expected = {fed[name] for name in _changed(before.sent, now.sent)} - {None}
    changed = _changed(before.shown, now.shown) & set(fed.values())
    if missing := expected - changed if exact or not changed else None:
        return (
            f"{len(missing)} of {len(expected)} changed tensors did not change in the engine, such as {missing.pop()}"
        )
    if extra := changed - expected:
        return f"{len(extra)} tensors changed in the engine and not in the trainer, such as {extra.pop()}"
    return ""

"""The arithmetic of the cookbook's Tinker recipe (training/tinker/main.py at f9580a3), which tests compare with."""

from __future__ import annotations

from collections.abc import Sequence

import tinker


def build_datum(ids: Sequence[int], sampled: Sequence[int], logprobs: Sequence[float], advantage: float, most: int):
    """Lay the logprobs of all turns on the last ids: unshifted, cut at `most` ids after the fact."""
    whole = list(ids)[:most]
    start = len(whole) - len(sampled)
    laid = [0.0] * start + list(logprobs)
    laid = (laid + [0.0] * len(whole))[: len(whole)]
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(whole),
        loss_fn_inputs={
            "target_tokens": whole,  # pyright: ignore[reportArgumentType]
            "logprobs": laid,  # pyright: ignore[reportArgumentType]
            "advantages": [0.0] * start + [advantage] * len(sampled),  # pyright: ignore[reportArgumentType]
        },
    )

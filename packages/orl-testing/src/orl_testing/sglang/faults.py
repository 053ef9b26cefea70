"""Faults of the stand-in for SGLang, request by request: scripted, or drawn from a seed.

Names and numbers only: the damage itself is done where the answer is made (`wire`, `SglangServer`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from enum import StrEnum

from msgspec import Struct


class FaultKind(StrEnum):
    """Kind of a fault. STATUS, RESET and DOWN come before the policy is asked, the others after."""

    STATUS = "status"
    RESET = "reset"
    DOWN = "down"  # the server dies: this and every other connection breaks, and new ones are refused
    RESET_MID_BODY = "reset_mid_body"
    HANG = "hang"  # no answer until the request is aborted
    ABORT = "abort"
    MALFORMED = "malformed"
    MISSING_LOGPROBS = "missing_logprobs"
    SHORT_LOGPROBS = "short_logprobs"
    NAN_LOGPROBS = "nan_logprobs"  # null on the wire, as SGLang's JSON writer has it
    NAN_LITERAL = "nan_literal"  # NaN on the wire, as Python's own JSON writer has it
    MISALIGNED_LOGPROBS = "misaligned_logprobs"
    OUT_OF_VOCABULARY = "out_of_vocabulary"
    NO_REPLAY = "no_replay"  # what the request asks for in addition to ids and logprobs is not there


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault of the `at`-th /generate request (from 0), or of every one.

    `status` and `message` belong to STATUS; `tokens` is how many ids ABORT and an aborted HANG return; `seconds` is how
    long DOWN lasts, which is None until `SglangServer.up`.
    """

    kind: FaultKind
    at: int | None = None
    status: int = 500
    message: str = "injected"
    tokens: int = 0
    seconds: float | None = None


FaultPlan = Callable[[int], Fault | None]  # from the place of a request in the order of arrival to its fault


def scripted_faults(faults: Sequence[Fault]) -> FaultPlan:
    """The first of `faults` that fits a request."""
    return lambda index: next((fault for fault in faults if fault.at in (None, index)), None)


def seeded_faults(seed: int, rate: float, faults: Sequence[Fault]) -> FaultPlan:
    """One of `faults` for a share `rate` of the requests (0 to 1); the same seed draws the same for the same request.

    `at` of the faults is not looked at.
    """

    def plan(index: int) -> Fault | None:
        draw = random.Random(f"{seed}:{index}")  # noqa: S311  a test's dice
        return draw.choice(faults) if draw.random() < rate else None

    return plan

"""The boundary: every foreign failure becomes one of ours, in a text of bounded length."""

from __future__ import annotations

import pytest
from orl_core.errors import LONGEST_MESSAGE, EngineError, SessionError, boundary, cut

PANIC = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})  # as PyO3 makes one for an extension


def test_panic_of_a_rust_library_is_converted() -> None:
    with pytest.raises(SessionError, match="PanicException: index out of bounds"), boundary(SessionError, "reading"):
        raise PANIC("index out of bounds")


@pytest.mark.parametrize("passing", [KeyboardInterrupt, SystemExit, GeneratorExit, EngineError])
def test_cancellation_and_our_own_errors_pass(passing: type[BaseException]) -> None:
    with pytest.raises(passing), boundary(SessionError, "reading"):
        raise passing


@pytest.mark.parametrize("text", ["x" * 10_000_000, 10**5_000, "\ud800"], ids=["long", "number", "surrogate"])
def test_text_of_any_exception_is_bounded(text: object) -> None:
    with pytest.raises(SessionError) as caught, boundary(SessionError, "reading"):
        raise ValueError(text)
    assert str(caught.value).startswith("reading: ValueError")
    assert len(str(caught.value)) < LONGEST_MESSAGE + 100


@pytest.mark.parametrize("most", range(1, 40))
def test_half_a_word_is_left_out_where_a_text_is_cut(most: int) -> None:
    text, secret = " \n so: sk-0123456789abcdef ends", "sk-0123456789abcdef"
    shown = cut(text, most)
    assert text.startswith(shown)
    assert secret in shown or "sk" not in shown
    assert cut(text.encode(), most) == shown.encode()
    with pytest.raises(SessionError) as caught, boundary(SessionError, "reading"):
        raise ValueError(" " * (LONGEST_MESSAGE - most) + "k" * 40)
    assert "kk" not in str(caught.value)

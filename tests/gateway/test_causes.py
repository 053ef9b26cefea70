"""What tells why an agent began another conversation: exact, and cheap for long texts."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st
from orl_gateway.episode.causes import inserted

texts = st.text(alphabet="ab", max_size=8)


@given(before=texts, now=texts)
def test_text_with_one_insertion_is_found(before: str, now: str) -> None:
    room = range(len(before) + 1 if len(now) >= len(before) > 0 else 0)
    wanted = now == before or any(now.startswith(before[:at]) and now.endswith(before[at:]) for at in room)
    assert inserted(before, now) == wanted


class Long(str):
    """A text of which nobody may look at each character: 64 prompts of 20,000 characters took 100 ms."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError


def test_long_texts_are_not_compared_by_character() -> None:
    before = Long("The rules. " * 2_000)
    assert inserted(before, before)
    assert inserted(before, Long(f"{before[:9_000]}A turn.{before[9_000:]}"))
    assert not inserted(before, Long(f"{before[:9_000]}A turn."))

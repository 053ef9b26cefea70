"""What tells why an agent began another conversation: exact, and cheap for long texts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from orl_gateway.episode.causes import inserted

texts = st.text(alphabet="ab", max_size=8)


@given(before=texts, now=texts)
def test_text_with_one_insertion_is_found(before: str, now: str) -> None:
    room = range(len(before) + 1 if len(now) >= len(before) > 0 else 0)
    wanted = now == before or any(now.startswith(before[:at]) and now.endswith(before[at:]) for at in room)
    assert inserted(before, now) == wanted

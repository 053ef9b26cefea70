"""The spool's memory of what it has seen."""

from hypothesis import example, given
from hypothesis import strategies as st
from orl_rollout.spool import Keys


@given(st.lists(st.integers(1, 2**64 - 1) | st.integers(1, 200).map(lambda n: n * 64), max_size=400))
@example([n * 2**20 for n in range(1, 500)])
def test_a_key_is_new_once(numbers: list[int]) -> None:
    keys, seen = Keys(), set[int]()
    for number in [*numbers, *reversed(numbers)]:
        assert keys.add(number) == (number not in seen)
        seen.add(number)


def test_zero_is_a_key() -> None:
    keys = Keys()
    assert keys.add(0)
    assert not keys.add(0)

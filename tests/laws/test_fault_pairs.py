"""Faults of engine and environment together, at any moment: the outcome, status and trained tokens that were promised.

Every pair at every pair of moments in one list, and any sequence by a state machine; both ask `oracle`, which knows the
promises and not the loop. After each rollout no session is open, no task runs, no tool has run twice, and nothing has
warned.
"""

from __future__ import annotations

import itertools
import warnings
from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from orl_core.trajectory import StopReason

from tests.kit.quick import every_fifth
from tests.laws.checks import check_data, check_shown
from tests.laws.episodes import NEVER, Call, Does, EnvironmentStep, Episode, ModelStep, Played, Says, play
from tests.laws.oracle import Expected, Over

SAYINGS = (
    *(Says(what) for what in get_args(ModelStep)),
    *(Says(calls=("good", call)) for call in get_args(Call)),
    *(Says(calls=(call,)) for call in ("unknown", "broken")),
    *(Says(seconds=seconds) for seconds in (7.0, 19.0, NEVER)),
)
DOINGS = (*(Does(what) for what in get_args(EnvironmentStep)), *(Does(seconds=seconds) for seconds in (7.0, NEVER)))


def check_episode(episode: Episode, promised: type[Expected] = Expected) -> Played:
    """Play it and compare with what was promised."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        played = play(episode)
    foretold = promised(episode)
    world, model = played.world, played.model
    assert played.left == 0
    assert world.closed == 1
    assert world.opened == 1
    assert (played.outcome is None) == foretold.cancelled
    if played.outcome is None:
        assert world.called <= foretold.called
        assert played.seconds < foretold.seconds + 1e-6
        return played
    trajectory, data = played.outcome.trajectory, played.outcome.datums
    assert trajectory.stop_reason is foretold.reason, trajectory.error
    assert bool(trajectory.error) == (foretold.reason is StopReason.ERROR)
    assert played.seconds == pytest.approx(foretold.seconds, abs=0.1)
    assert world.called == foretold.called
    assert [turn.action_ids for turn in trajectory.turns] == foretold.turns
    assert list(trajectory.rewards) == foretold.paid
    assert played.outcome.reward == (0.0 if foretold.reason is StopReason.ERROR else sum(foretold.paid))
    check_data(trajectory, data)
    taken = sum(len(turn.generations) for turn in trajectory.turns)
    check_shown(model.answered[:taken], data)
    sampled = tuple(token for ids in foretold.turns for token in ids)
    trained = [token for datum in data for token, bit in zip(datum.response, datum.loss_mask, strict=True) if bit]
    assert trained == list(sampled if foretold.trainable else ())
    return played


def test_quarter_of_the_pairs_of_faults_at_a_moment_each() -> None:
    """Every fault of engine and environment is in some of them, at each of the moments."""
    for (number, says), (other, does) in itertools.product(enumerate(SAYINGS), enumerate(DOINGS)):
        if (number + other) % 4 == 0:
            check_episode(Episode(says={number % 3: says}, does={other % 3: does}))


@pytest.mark.slow
@pytest.mark.parametrize("says", SAYINGS, ids=str)
def test_every_pair_of_faults_at_every_pair_of_moments(says: Says) -> None:
    for does, said_at, done_at in itertools.product(DOINGS, range(3), range(3)):
        episode = Episode(says={said_at: says}, does={done_at: does})
        check_episode(episode)
        if not done_at:
            check_episode(episode._replace(in_text=True, says={1: Says("text"), said_at: says}))


@pytest.mark.parametrize(
    "does", [Does("error"), Does("foreign error"), Does(seconds=7.0), Does(seconds=NEVER)], ids=str
)
@pytest.mark.parametrize("says", every_fifth(SAYINGS), ids=str)
def test_opening_and_closing_fail_beside_any_of_them(says: Says, does: Does) -> None:
    for at in range(3):
        check_episode(Episode(says={at: says}, opens=does))
        check_episode(Episode(says={at: says}, closes=does))


class FaultMachine(RuleBasedStateMachine):
    """Any faults at any moments, one rollout after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.episode = Episode()

    @rule(at=st.integers(0, 4), says=st.sampled_from(SAYINGS))
    def the_engine(self, at: int, says: Says) -> None:
        self.episode = self.episode._replace(says={**self.episode.says, at: says})

    @rule(at=st.integers(0, 4), does=st.sampled_from(DOINGS))
    def the_environment(self, at: int, does: Does) -> None:
        self.episode = self.episode._replace(does={**self.episode.does, at: does})

    @rule(does=st.sampled_from(DOINGS), opens=st.booleans())
    def a_session(self, does: Does, opens: bool) -> None:
        self.episode = self.episode._replace(**{"opens" if opens else "closes": does})

    @rule(in_text=st.booleans(), parallel=st.booleans(), train_timeouts=st.booleans())
    def the_configuration(self, in_text: bool, parallel: bool, train_timeouts: bool) -> None:
        self.episode = self.episode._replace(in_text=in_text, parallel=parallel, train_timeouts=train_timeouts)

    @rule(at=st.integers(0, 34), cancels=st.booleans())
    def the_host(self, at: int, cancels: bool) -> None:
        moment = {"cancelled_at": at + 0.31} if cancels else {"stops_at": at + 0.71}
        self.episode = self.episode._replace(**moment)

    @rule()
    def plays(self) -> None:
        check_episode(self.episode)
        self.episode = Episode()

    def teardown(self) -> None:
        check_episode(self.episode)


TestFaultMachine = FaultMachine.TestCase
TestFaultMachine.settings = settings(stateful_step_count=8)


PAIRS = [
    Episode(says={said_at: says}, does={0: does})
    for says, does, said_at in itertools.product(SAYINGS, DOINGS, range(2))
]
SLOW = Episode(says={0: Says(seconds=19.0), 1: Says(seconds=19.0)})


def test_every_ending_is_foretold_by_some_pair() -> None:
    reasons = {Expected(episode).reason for episode in (*PAIRS, SLOW, Episode(stops_at=0.0))}
    assert reasons == set(StopReason)


class _DeafToTheHost(Expected):
    def _heed_the_host(self) -> None:
        return


class _FaultsAreEndings(Expected):
    def _fail(self, fault: bool) -> None:
        if fault:
            raise Over(StopReason.MAX_TURNS)


class _Patient(Expected):
    def _wait(self, seconds: float, most: float) -> None:
        super()._wait(min(seconds, most, 1.0), most)


class _Repeating(Expected):
    def _call_one(self, does: Does) -> None:
        self.called += does.what == "error"
        super()._call_one(does)


@pytest.mark.parametrize("other", [_DeafToTheHost, _FaultsAreEndings, _Patient, _Repeating])
def test_negative_control_other_promises_are_not_kept(other: type[Expected]) -> None:
    """A rollout that keeps these promises is found not to keep others."""
    stopped = Episode(stops_at=1.71, says={0: Says(seconds=7.0)})
    with pytest.raises(AssertionError):  # noqa: PT012  whichever of them it is that shows the difference
        for episode in (stopped, SLOW, *PAIRS):
            check_episode(episode, other)

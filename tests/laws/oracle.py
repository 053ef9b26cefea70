"""An oracle of endings: section 8's promises as one plain function, on a clock that only adds.

It knows nothing of the loop but its promises, whose numbers are next to what they decide.
"""

from __future__ import annotations

from orl_core.trajectory import StopReason

from tests.laws.episodes import (
    CALL_SECONDS,
    CLOSE_SECONDS,
    MAX_INVALID,
    MAX_NUDGES,
    MAX_TURNS,
    NEVER,
    PAUSE,
    ROLLOUT_SECONDS,
    TURN_SECONDS,
    Does,
    Episode,
    Says,
)

FAULTS = ("error", "foreign error", "nothing", "too much")


class Over(Exception):
    """The episode ends here."""

    def __init__(self, reason: StopReason) -> None:
        self.reason = reason


class Expected:
    """The expected result of an episode: its end, the ids of every turn, what is paid, the tools that are run."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self.turns: list[tuple[int, ...]] = []
        self.paid: list[float] = []
        self.called = self._asked = self._nudges = self._invalid = 0
        self.seconds = 0.0
        try:
            self._play()
            self.reason = StopReason.MAX_TURNS
        except Over as over:
            self.reason = over.reason
        self.seconds += min(episode.closes.seconds, CLOSE_SECONDS)  # 10: closed on every path, in bounded time
        self.cancelled = episode.cancelled_at < self.seconds
        trainable = {StopReason.FINISHED, StopReason.MAX_TURNS, StopReason.MAX_TOKENS}
        self.trainable = self.reason in trainable | ({StopReason.TIMEOUT} if episode.train_timeouts else set())

    def _play(self) -> None:
        self._wait(self._episode.opens.seconds, NEVER)
        self._fail(self._episode.opens.what in FAULTS)
        for turn in range(1, MAX_TURNS + 1):
            self._heed_the_host()
            says = self._say()
            self._heed_the_host()
            done = self._answer_text() if says.what == "text" else self._act(says)
            self._fail(turn < MAX_TURNS and any(does.what == "image" for does in done))  # 11: refused loudly

    def _say(self) -> Says:
        """One action: the last of the requests that it took."""
        self.turns.append(())
        while True:
            says = self._episode.says.get(self._asked, Says())
            self._asked += 1
            self._wait(says.seconds, TURN_SECONDS)
            self._fail(says.what in FAULTS)
            self.turns[-1] += says.ids
            if says.what == "cut":  # 2: kept and trained, not acted on
                raise Over(StopReason.MAX_TOKENS)
            if says.what != "abort":
                return says
            self._heed_the_host()  # 7: an abort is the host's if its flag is set, else the action continues
            self._wait(PAUSE, NEVER)

    def _answer_text(self) -> list[Does]:
        if self._episode.in_text:  # 5: the terminal tool if there is one
            self._call_one(self._next())
            raise Over(StopReason.FINISHED)
        self._nudges += 1
        if self._nudges > MAX_NUDGES:
            raise Over(StopReason.MAX_TURNS)
        return []

    def _act(self, says: Says) -> list[Does]:
        """4: in order, or side by side; the first that ends the episode wins over everything after it."""
        done: list[Does] = []
        failed: list[bool] = []
        if self._episode.parallel:
            done = [self._next() for call in says.calls if call == "good"]
            self._call_all(done)
            failed = [does.what == "refuses" for does in done] + [True] * (len(says.calls) - len(done))
        else:
            for call in says.calls:
                self._heed_the_host()  # 7: before every call
                if call == "good":
                    done.append(self._next())
                    self._call_one(done[-1])
                failed.append(call != "good" or done[-1].what == "refuses")
        self._invalid = self._invalid + 1 if all(failed) else 0
        if self._invalid >= MAX_INVALID:  # 3: so many mistakes in a row
            raise Over(StopReason.MAX_TURNS)
        return done

    def _call_one(self, does: Does) -> None:
        self._wait(does.seconds, CALL_SECONDS)
        self._fail(does.what in FAULTS)
        self._pay(does)
        if does.what == "ends":  # 6
            raise Over(StopReason.FINISHED)

    def _call_all(self, done: list[Does]) -> None:
        self._wait(max((min(does.seconds, CALL_SECONDS) for does in done), default=0.0), NEVER)
        sound = [does for does in done if does.what not in FAULTS and does.seconds < CALL_SECONDS]
        for does in sound:
            self._pay(does)
        if any(does.what == "ends" for does in sound):
            raise Over(StopReason.FINISHED)
        self._fail(len(sound) < len(done))

    def _next(self) -> Does:
        self.called += 1
        return self._episode.does.get(self.called - 1, Does())

    def _pay(self, does: Does) -> None:
        if does.what in ("pays", "ends", "image"):
            self.paid.append(0.25)

    def _heed_the_host(self) -> None:
        if self.seconds >= self._episode.stops_at:
            raise Over(StopReason.ABORTED)

    def _fail(self, fault: bool) -> None:
        if fault:  # 8
            raise Over(StopReason.ERROR)

    def _wait(self, seconds: float, most: float) -> None:
        """9: the deadline of this wait is a fault, the rollout's own an ending with turns; the earlier one wins."""
        if self.seconds + min(seconds, most) > ROLLOUT_SECONDS:
            self.seconds = ROLLOUT_SECONDS
            raise Over(StopReason.TIMEOUT if self.turns else StopReason.ERROR)
        self.seconds += min(seconds, most)
        self._fail(seconds > most)

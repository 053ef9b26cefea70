"""State of an episode: it runs, it has ended, or it failed. A request after the end is refused."""

from __future__ import annotations

from collections.abc import Callable

from orl_core.errors import OrlError
from orl_core.trajectory import StopReason
from orl_rollout.loop.mistakes import Ending

from orl_gateway.dialects.exchange import RequestRefused


class EpisodeState:
    """The ending and the fault of one episode; the first one counts. `stopped` is the trainer's abort flag.

    `refusal` is what the agent got for its last request of the model, None if it was answered.
    """

    def __init__(self, stopped: Callable[[], bool]) -> None:
        self.ending: Ending | None = None
        self.error = ""
        self.refusal: RequestRefused | None = None
        self.stopped = stopped

    @property
    def over(self) -> bool:
        """Tell whether nothing more can happen."""
        return self.ending is not None or bool(self.error)

    def check(self) -> None:
        """Refuse a request of an episode that is over."""
        if not self.over and self.stopped():
            self.ending = StopReason.ABORTED
        if self.error:
            raise _fault(self.error)
        if self.ending is not None:
            raise RequestRefused(f"the episode is over ({self.ending}): end", code="episode_over")

    def end(self, ending: Ending) -> None:
        """End the episode, unless it is over."""
        if not self.over:
            self.ending = ending

    def reject(self, why: str) -> None:
        """Make an ERROR of an episode in which the agent got nothing done, also after its end."""
        self.error = self.error or why

    def fail(self, fault: OrlError) -> RequestRefused:
        """End the episode with ERROR, unless it is over, and return the refusal of the request that met the fault."""
        if not self.over:
            self.error = str(fault)
        return _fault(str(fault))


def _fault(text: str) -> RequestRefused:
    return RequestRefused(text, code="engine_fault", status=502)

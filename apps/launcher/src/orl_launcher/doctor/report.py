"""The page of a check-up: each finding is one line with a verdict, a subject and what to do, printed when it is found.

It knows no check. Everything printed passes the scrubber and `visible`: no secret's value is shown (law L6), and no
text from outside steers the terminal. Every check has a time limit, and a failed one does not stop the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from orl_core.errors import OrlError, boundary
from orl_core.text import visible
from orl_rollout.edge import interrupt
from orl_rollout.edge.secrets import Scrubber
from rich.console import Console
from rich.text import Text

from orl_launcher.reports import CheckVerdict, DoctorReport, FindingReport

T = TypeVar("T")


STYLES: dict[CheckVerdict, str] = {
    "ok": "green",
    "warning": "yellow",
    "failed": "bold red",
    "still loading": "yellow",
    "not checked": "dim",
}


class Report:
    """One page of findings. `seconds` limits each check; `scrubber` is set once the configuration is read.

    `stage` is the work of a check that is under way ("loading the tokenizer"), "" as long as nothing has answered.
    """

    def __init__(self, console: Console, seconds: float) -> None:
        self._console = console
        self._group = ""
        self._findings: list[FindingReport] = []
        self.seconds, self.stage = seconds, ""
        self.scrubber = Scrubber(())

    def group(self, name: str) -> None:
        """Begin a group of findings."""
        self._group = name
        self._console.print(name, style="bold")

    def say(self, verdict: CheckVerdict, text: str) -> None:
        """Print one finding, in one line."""
        words = visible(" ".join(self.scrubber.scrub(text).split()))
        self._findings.append(FindingReport(group=self._group, verdict=verdict, text=words, notes=[]))
        self._console.print(Text.assemble((f"  {verdict:<11}  ", STYLES[verdict]), words))

    def note(self, text: str) -> None:
        """Print a remark that needs no action. It may have several lines."""
        for line in visible(self.scrubber.scrub(text)).split("\n"):
            if self._findings:
                self._findings[-1].notes.append(line)
            self._console.print(Text(f"{'':15}{line}", style="dim"))

    def conclude(self) -> DoctorReport:
        """Print the number of findings of each verdict. Return all of them."""
        counts = Counter(finding.verdict for finding in self._findings)
        words = (f"{counts[verdict]} {verdict}" for verdict in STYLES if verdict in counts)
        self._console.print(", ".join(words), style="bold")
        return DoctorReport(ok="failed" not in counts, findings=self._findings)

    def attempt(self, subject: str, work: Callable[[], T], *, advice: str = "", stage: str = "") -> T | None:
        """Return the result of `work` on a thread; None after a fault or too long a time, printed with `advice`.

        A thread that takes too long is left behind: foreign code cannot be ended, and must not hold the command.
        Work with a `stage` is still loading rather than failed if it takes too long.
        """
        return self._result(
            subject, lambda: interrupt.result_of(interrupt.on_thread(work), self.seconds), advice, stage
        )

    def await_(self, subject: str, work: Callable[[], Awaitable[T]], *, advice: str = "", stage: str = "") -> T | None:
        """Return the result of `work` on an event loop, as `attempt`. Work that takes too long is cancelled."""

        async def in_time() -> T:
            async with asyncio.timeout(self.seconds):
                return await work()

        return self._result(subject, lambda: interrupt.run(in_time()), advice, stage)

    def _result(self, subject: str, work: Callable[[], T], advice: str, stage: str) -> T | None:
        self.stage = stage
        try:
            with boundary(OrlError, "a bug in orl"):
                try:
                    with self._console.status(visible(subject)):  # only a terminal shows it
                        return work()
                except TimeoutError as exc:
                    if not self.stage:
                        raise OrlError(f"not done within {self.seconds:g} s. Raise --timeout") from exc
                    self.say("still loading", f"{subject}: {self.stage} takes over {self.seconds:g} s. Raise --timeout")
        except OrlError as exc:
            self.say("failed", f"{subject}: {exc}{f'. {advice}' if advice else ''}")
        return None

"""Accidents that a healthy run survives, and a sick run that must end.

A healthy run has each planned rollout in its journal once, with its reward. A sick one must not train on nothing.
"""

from __future__ import annotations

import random
import time

from benchmarks.night.scenario import PLAY_SECONDS, Drive, Night, healthy_end, last_line
from benchmarks.night.verdict import Verdict, named_in

PATIENCE = 20.0  # seconds that a run waits for a dead environment
END_SECONDS = 120.0  # for a run to end after its patience


def moment(night: Night, scenario: str) -> float:
    """Return the share of the plan after which the accident comes, by the seed."""
    return random.Random(f"{scenario} at {night.seed}").uniform(0.2, 0.5)


def outage(night: Night, seconds: float) -> Verdict:
    """Kill the environment server in mid-batch, and start it again at its address after `seconds`."""
    scenario = f"environment down {seconds:g} s"
    with Drive(night, scenario, 640) as drive:
        with drive.driver() as running:
            drive.until(moment(night, scenario), running)
            drive.environment.kill()
            time.sleep(night.wait(seconds))
            drive.environment.start()
            ending = Verdict(scenario=scenario)
            healthy_end(running, PLAY_SECONDS, ending)
        return drive.judged(ending)


def engine_death(night: Night, seconds: float = 15.0) -> Verdict:
    """Kill the engine twice in mid-batch, and start it again after `seconds`."""
    scenario = f"engine down {seconds:g} s, twice"
    first = moment(night, scenario)
    with Drive(night, scenario, 640) as drive:
        with drive.driver() as running:
            for share in (first, first + 0.3):
                drive.until(share, running)
                drive.engine.kill()
                time.sleep(night.wait(seconds))
                drive.engine.start()
            ending = Verdict(scenario=scenario)
            healthy_end(running, PLAY_SECONDS, ending)
        return drive.judged(ending)


def kills(night: Night) -> Verdict:
    """Kill the driver twice in mid-batch and let the next one continue.

    A session that the server still has must be named in the journal or in the list of open sessions at once, and must
    be closed at the end.
    """
    scenario = "two SIGKILLs"
    first, unnamed, open_before = moment(night, scenario), 0, set[str]()
    with Drive(night, scenario, 640) as drive:
        for share in (first, first + 0.3):
            with drive.driver() as running:
                drive.until(share, running)
                running.kill()
            sessions: dict[str, str] = drive.environment.ask("/night/open")
            named = named_in(drive.folder)
            unnamed += sum(not {sid, name} & named for sid, name in sessions.items() if sid not in open_before)
            open_before |= sessions.keys()
        ending = Verdict(scenario=scenario, lost=unnamed)
        with drive.driver() as running:
            healthy_end(running, PLAY_SECONDS, ending)
        ending.notes.append(f"{len(open_before)} sessions open at the SIGKILLs, {unnamed} of them named nowhere")
        return drive.judged(ending)


def dead_environment(night: Night) -> Verdict:
    """Kill the environment server for good."""
    scenario = "environment dead"
    with Drive(night, scenario, 320, rollout={"patience": PATIENCE}) as drive:
        with drive.driver() as running:
            drive.until(moment(night, scenario), running)
            drive.environment.kill()
            code = running.wait(PATIENCE + END_SECONDS)
            said = last_line(running)
        verdict = drive.judged(Verdict(scenario=scenario))
    verdict.lost = 0  # a dead environment loses them
    verdict.went_on = int(not code)
    verdict.unclear = int(bool(code) and "ended: " not in said)
    verdict.notes.insert(0, f"exit code {code}: {said}")
    return verdict

"""Accidents that a healthy run survives: each planned rollout is in the journal once, with its reward."""

from __future__ import annotations

import random
import time

from benchmarks.night.disk import small_disk
from benchmarks.night.plan import configuration
from benchmarks.night.scenario import PLAY_SECONDS, Drive, Night, healthy_end, last_line
from benchmarks.night.verdict import Verdict, named_in, open_to_others

DISK_BYTES = 32 << 20


def moment(night: Night, scenario: str) -> float:
    """Return the share of the plan after which the accident comes, by the seed."""
    return random.Random(f"{scenario} at {night.seed}").uniform(0.2, 0.5)


def outage(night: Night, seconds: float) -> Verdict:
    """Kill the environment server in mid-batch, and start it again at its address after `seconds`."""
    scenario = f"environment down {seconds:g} s"
    with night.environment() as environment, night.engine() as engine:
        drive = Drive(night, scenario, night.count(640), configuration(environment.url), engine.url)
        with drive.driver() as running:
            drive.until(moment(night, scenario), running)
            environment.kill()
            time.sleep(night.wait(seconds))
            environment.start()
            ending = Verdict(scenario=scenario)
            healthy_end(running, PLAY_SECONDS, ending)
        left = len(environment.ask("/night/open"))
    return _merged(drive, ending, left)


def busy(night: Night) -> Verdict:
    """Let the environment server answer 429 to openings for a while."""
    seconds = night.wait(20.0)
    scenario = f"429 for {seconds:g} s"
    with night.environment() as environment, night.engine() as engine:
        drive = Drive(night, scenario, night.count(480), configuration(environment.url), engine.url)
        with drive.driver() as running:
            drive.until(moment(night, scenario), running)
            environment.ask(f"/night/busy?seconds={seconds:g}")
            ending = Verdict(scenario=scenario)
            healthy_end(running, seconds + PLAY_SECONDS, ending)
        refused: int = environment.ask("/night/busy")["refused"]
        left = len(environment.ask("/night/open"))
    ending.notes.append(f"{refused} openings refused")
    return _merged(drive, ending, left)


def engine_death(night: Night, seconds: float = 15.0) -> Verdict:
    """Kill the engine twice in mid-batch, and start it again after `seconds`."""
    scenario = f"engine down {seconds:g} s, twice"
    with night.environment() as environment, night.engine() as engine:
        drive = Drive(night, scenario, night.count(640), configuration(environment.url), engine.url)
        first = moment(night, scenario)
        with drive.driver() as running:
            for share in (first, first + 0.3):
                drive.until(share, running)
                engine.kill()
                time.sleep(night.wait(seconds))
                engine.start()
            ending = Verdict(scenario=scenario)
            healthy_end(running, PLAY_SECONDS, ending)
        left = len(environment.ask("/night/open"))
    return _merged(drive, ending, left)


def kills(night: Night) -> Verdict:
    """Kill the driver twice in mid-batch and let the next one continue.

    A session that the server still has must be named in the journal or in the list of open sessions at once, and must
    be closed at the end.
    """
    scenario = "two SIGKILLs"
    with night.environment() as environment, night.engine() as engine:
        drive = Drive(night, scenario, night.count(640), configuration(environment.url), engine.url)
        first, unnamed, open_before = moment(night, scenario), 0, set[str]()
        for share in (first, first + 0.3):
            with drive.driver() as running:
                drive.until(share, running)
                running.kill()
            sessions: dict[str, str] = environment.ask("/night/open")
            named = named_in(drive.folder)
            unnamed += sum(not {sid, name} & named for sid, name in sessions.items() if sid not in open_before)
            open_before |= sessions.keys()
        ending = Verdict(scenario=scenario, lost=unnamed, unclear=int(bool(readable := open_to_others(drive.folder))))
        with drive.driver() as running:
            healthy_end(running, PLAY_SECONDS, ending)
        left = len(environment.ask("/night/open"))
    ending.notes.append(f"{len(open_before)} sessions open at the SIGKILLs, {unnamed} of them named nowhere")
    ending.notes += [f"{name} can be read by others" for name in readable]
    return _merged(drive, ending, left)


def full_journal(night: Night) -> Verdict:
    """Fill the disk of the journal in mid-batch: the run ends with one line. With room, the next one continues."""
    scenario = "full disk in the journal"
    with small_disk(night.folder / "journal-disk", DISK_BYTES) as disk, night.environment() as environment:
        with night.engine() as engine:
            drive = Drive(night, scenario, night.count(320), configuration(environment.url), engine.url)
            drive.in_folder(disk.folder / "run")
            with drive.driver() as running:
                drive.until(moment(night, scenario), running)
                disk.fill(running, 0)
                code, said = running.wait(PLAY_SECONDS), last_line(running)
            disk.empty()
            ending = Verdict(scenario=scenario, unclear=int(code != 1 or not said.startswith("ended: ")))
            ending.notes.append(said)
            with drive.driver() as running:
                healthy_end(running, PLAY_SECONDS, ending)
        return _merged(drive, ending, len(environment.ask("/night/open")))


def _merged(drive: Drive, ending: Verdict, left: int) -> Verdict:
    verdict = drive.judged(ending.scenario)
    verdict.lost += ending.lost
    verdict.ended, verdict.unclear = ending.ended, ending.unclear
    verdict.left = left
    verdict.notes = [*ending.notes, *verdict.notes]
    return verdict

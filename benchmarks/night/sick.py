"""Sick runs: each must be ended, or named as sick, within its bound. One that continues trains on nothing."""

from __future__ import annotations

from benchmarks.night.healthy import moment
from benchmarks.night.plan import configuration, patience
from benchmarks.night.scenario import PLAY_SECONDS, Drive, Night, last_line
from benchmarks.night.verdict import Verdict

PATIENCE = 20.0  # seconds, in a tree that has the setting
END_SECONDS = 120.0  # for a run to end after its patience


def dead_environment(night: Night) -> Verdict:
    """Kill the environment server for good."""
    scenario = "environment dead"
    with night.environment() as environment, night.engine() as engine:
        config = configuration(environment.url, **patience(PATIENCE))
        drive = Drive(night, scenario, night.count(320), config, engine.url)
        with drive.driver() as running:
            drive.until(moment(night, scenario), running)
            environment.kill()
            code = running.wait(PATIENCE + END_SECONDS)
            said = last_line(running)
    verdict = drive.judged(scenario)
    verdict.lost = 0  # a dead environment loses them
    verdict.went_on = int(not code)
    verdict.unclear = int(bool(code) and "ended: " not in said)
    verdict.notes.insert(0, f"exit code {code}: {said}")
    return verdict


def silent_agent(night: Night) -> Verdict:
    """Play with a program that prints its usage, asks for nothing and exits 0."""
    scenario = "agent never asks"
    with night.environment() as environment, night.engine() as engine:
        config = configuration(environment.url)
        config["agent"] = {"command": ["/bin/sh", "-c", "echo 'usage: agent [--help] TASK'"]}
        drive = Drive(night, scenario, night.count(128), config, engine.url)
        with drive.driver() as running:
            code = running.wait(PLAY_SECONDS)
            said = last_line(running)
    verdict = drive.judged(scenario)
    verdict.lost = 0
    verdict.went_on = int(code is None or verdict.wrong > 0)
    verdict.notes.insert(0, f"exit code {code}: {said}")
    return verdict

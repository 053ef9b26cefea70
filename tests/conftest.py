"""Hypothesis profiles: `quick` and `dev` draw new examples, `ci` and `ci-laws` the same ones in each run.

CI judges a change, so a run of an unchanged tree gives an unchanged answer: 500 examples of every law, which
`tests/laws/conftest.py` sees to, and 100 of every other property. New examples are the work of `quick` and `dev`.

HYPOTHESIS_PROFILE names the profile, `dev` if it is not set; --hypothesis-profile wins over it.
"""

import atexit
import faulthandler
import gc
import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

gc.disable()  # while modules are imported: a sixth of the time, and next to nothing of it is garbage
os.environ["OMP_NUM_THREADS"] = "1"  # a second thread gains nothing on small tensors, and spins
os.environ.setdefault("OPENREWARD_LOG_LEVEL", "ERROR")  # the SDK reads it once, when it is imported

# A script ignores SIGINT for what it starts with `&`. Tests send it, also to processes that would inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("dev", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", parent=settings.get_profile("dev"), max_examples=10)
settings.register_profile("ci", parent=settings.get_profile("dev"), derandomize=True)
settings.register_profile("ci-laws", parent=settings.get_profile("ci"), max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

ERRORS = pytest.StashKey[int]()
# Modules that need the checkout of a trainer: they import torch and more, for tests that are not selected then.
collect_ignore_glob = [] if any(map(find_spec, ("slime", "miles"))) else ["*/test_real_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real stderr: pytest captures output from now on."""
    config.stash[ERRORS] = os.dup(2)


def pytest_collection_finish() -> None:
    """Take what is imported out of garbage collection: trainers collect after each step, and walked it all."""
    gc.collect()
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # Triton's bindings print a page of leaks otherwise


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Bound the end of fixtures too. After a failure pytest forgets `faulthandler_timeout`."""
    if seconds := float(item.config.getini("faulthandler_timeout")):
        faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[ERRORS])


def pytest_xdist_auto_num_workers() -> int:
    """Return one worker for each core: each one imports torch, transformers and the SDK for itself."""
    return os.cpu_count() or 1


@pytest.fixture(scope="session")
def guess_number() -> Iterator[str]:
    """The URL of one server of GuessNumber for all tests, on a thread: a process would import the SDK for seconds."""
    from orl_playground.guess_number import GuessNumber
    from orl_testing.environments import serve

    with serve(GuessNumber) as served:
        yield served.url


@pytest.fixture
def heeds_hangup() -> Iterator[None]:
    """Heed SIGHUP while the test runs. `nohup` ignores it, for the whole run and its children."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a twentieth of the usual pauses before an environment is asked again: tests count the tries."""
    from orl_rollout.edge import retry

    monkeypatch.setattr(retry, "PAUSES", tuple(pause / 20 for pause in retry.PAUSES))

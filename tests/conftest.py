"""Hypothesis profiles: `dev` with new random examples, and `ci` with the same 500 of every property in each run.

CI judges a change: a run of an unchanged tree gives an unchanged answer. New examples are the work of `dev`.

HYPOTHESIS_PROFILE names the one to use, `dev` where it is not set; --hypothesis-profile wins over it.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("dev", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("dev"), max_examples=500, derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

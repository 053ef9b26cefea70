"""Hypothesis profiles: `dev`, and `ci` with 500 examples of every property.

HYPOTHESIS_PROFILE names the one to use, `dev` where it is not set; --hypothesis-profile wins over it.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("dev", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("dev"), max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

"""Hypothesis profiles: `dev` by default, `ci` (500 examples each) with --hypothesis-profile=ci."""

from hypothesis import HealthCheck, settings

settings.register_profile("dev", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("dev"), max_examples=500)
settings.load_profile("dev")

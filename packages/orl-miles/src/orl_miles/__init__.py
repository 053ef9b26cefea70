"""orl-miles: rollouts of orl inside miles. `generate`, `reward`, `filter` and `log` are the hooks that miles calls.

Only this package names miles, and it never imports it: the hooks work on any object with the fields of miles' Sample.

Public are the modules `generate` and `hooks`, whose functions miles names by their path, and `launch`, the entry point.
The others are internal.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orl_miles import generate, hooks, launch

__all__ = ["generate", "hooks", "launch"]

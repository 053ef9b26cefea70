"""orl-slime: rollouts of orl inside slime. `generate` and `reward` are the hooks that slime calls.

Only this package names slime, and it never imports it: the hooks work on any object with the fields of slime's Sample.

Public are the modules `generate` and `hooks`, whose functions slime names by their path, and `launch`, the entry point.
The others are internal.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orl_slime import generate, hooks, launch

__all__ = ["generate", "hooks", "launch"]

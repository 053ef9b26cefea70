"""orl-slime: rollouts of orl inside slime. `generate` and `reward` are the hooks that slime calls.

Only this package names slime, and it never imports it: the hooks work on any object with the fields of slime's Sample.
"""

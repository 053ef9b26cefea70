"""orl-miles: rollouts of orl inside miles. `generate`, `reward`, `filter` and `log` are the hooks that miles calls.

Only this package names miles, and it never imports it: the hooks work on any object with the fields of miles' Sample.
"""

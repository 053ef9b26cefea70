"""What trainers on a cluster share: their own Python, their command line, their Ray, and their workers.

Such a trainer lives in an environment of its own, with pins that ours must not touch. So nothing of it is imported. On
the launcher's side it is asked by a subprocess (`probe`) and run as one (`ray`, `process`). In its own processes, where
it calls `generate` and the other hooks, it comes in as a Host, as arguments and as samples. No trainer is named here.
"""

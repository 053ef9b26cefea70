"""What trainers on a cluster share: their own Python, their command line, their Ray. No trainer is named here.

Such a trainer lives in an environment of its own, with pins that ours must not touch. So nothing of it is imported:
it is asked by a subprocess (`probe`) and run as one (`ray`, `process`).
"""

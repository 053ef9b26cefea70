"""Shared by adapters of trainers on a cluster: launching (`launch`) and the hooks that workers call (`hooks`).

Such a trainer has an environment of its own, with pins that ours must not touch, so nothing of it is imported. The
launcher asks it by a subprocess (`probe`) and runs it as one (`ray`, `process`). Its own processes call `generate` and
the other hooks with a Host, arguments and samples. No trainer is named here.

Only adapters import this package, by its modules: nothing of it is public.
"""

__all__: list[str] = []

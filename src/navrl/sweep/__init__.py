"""Sweeps over settings: Optuna proposes, `navrl train` runs each trial, poor ones are pruned.

A study survives kill -9 and is shared by any number of processes and machines.
"""

from navrl.lazy import lazy_names

_PUBLIC = {
    "Space": "navrl.sweep.space",
    "Sweep": "navrl.sweep.sweep",
    "load_space": "navrl.sweep.space",
}

__all__ = ["Space", "Sweep", "load_space"]
__getattr__ = lazy_names(__name__, _PUBLIC)

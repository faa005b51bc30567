"""Takes a policy to a robot: exported files with proof, and a shield before the motors.

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from navrl.lazy import lazy_names

_PUBLIC = {
    "Shield": "navrl.deploy.shield",
    "ShieldResult": "navrl.deploy.shield",
    "ShieldSettings": "navrl.deploy.shield",
}

if TYPE_CHECKING:
    from navrl.deploy.shield import Shield as Shield
    from navrl.deploy.shield import ShieldResult as ShieldResult
    from navrl.deploy.shield import ShieldSettings as ShieldSettings

__all__ = [*_PUBLIC]

__getattr__ = lazy_names(__name__, _PUBLIC)

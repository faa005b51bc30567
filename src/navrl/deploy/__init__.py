"""Takes a policy to a robot: exported files with proof, a shield, the node, a rehearsal.

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from navrl.lazy import lazy_names

_PUBLIC = {
    "CoastingPilot": "navrl.deploy.coasting_pilot",
    "NodeCore": "navrl.deploy.node.node_core",
    "NodeSettings": "navrl.deploy.node.node_settings",
    "QpShield": "navrl.deploy.qp_shield",
    "RobotPolicy": "navrl.deploy.robot_policy",
    "Shield": "navrl.deploy.shield",
    "ShieldResult": "navrl.deploy.shield",
    "ShieldSettings": "navrl.deploy.shield",
    "ShieldedPilot": "navrl.deploy.shielded_pilot",
    "TrackMemory": "navrl.deploy.track_memory",
    "export_policy": "navrl.deploy.policy_export",
    "verify_export": "navrl.deploy.verify",
}

if TYPE_CHECKING:
    from navrl.deploy.coasting_pilot import CoastingPilot as CoastingPilot
    from navrl.deploy.node.node_core import NodeCore as NodeCore
    from navrl.deploy.node.node_settings import NodeSettings as NodeSettings
    from navrl.deploy.policy_export import export_policy as export_policy
    from navrl.deploy.qp_shield import QpShield as QpShield
    from navrl.deploy.robot_policy import RobotPolicy as RobotPolicy
    from navrl.deploy.shield import Shield as Shield
    from navrl.deploy.shield import ShieldResult as ShieldResult
    from navrl.deploy.shield import ShieldSettings as ShieldSettings
    from navrl.deploy.shielded_pilot import ShieldedPilot as ShieldedPilot
    from navrl.deploy.track_memory import TrackMemory as TrackMemory
    from navrl.deploy.verify import verify_export as verify_export

__all__ = [*_PUBLIC]

__getattr__ = lazy_names(__name__, _PUBLIC)

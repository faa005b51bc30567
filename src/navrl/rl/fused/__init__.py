"""The navigation network in hand-vectorised CPU kernels, forward and backward."""

from navrl.rl.fused.fused_network import FusedNetwork, supports

__all__ = ["FusedNetwork", "supports"]

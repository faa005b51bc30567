"""Perspective pictures of the simulator, drawn by the processor: no display, no graphics card."""

from navrl.render.camera import Camera, chasing, overview
from navrl.render.moment import Moment, moment_of
from navrl.render.renderer import Renderer

__all__ = ["Camera", "Moment", "Renderer", "chasing", "moment_of", "overview"]

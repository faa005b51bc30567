"""Perspective pictures of flights, drawn by the processor alone: no display, no graphics card."""

from navrl.view.render.camera import Camera, chasing, overview
from navrl.view.render.moment import Moment, moment_at, moment_of
from navrl.view.render.renderer import Renderer

__all__ = ["Camera", "Moment", "Renderer", "chasing", "moment_at", "moment_of", "overview"]

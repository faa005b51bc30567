"""The replay page: recorded flights as one HTML file that any browser plays, without a network."""

from navrl.view.replay.writer import replay_page, write_replay

__all__ = ["replay_page", "write_replay"]

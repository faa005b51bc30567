"""Events as dictionaries."""

from __future__ import annotations

Event = dict

"""What Linux says about the session of a process."""

from __future__ import annotations

from pathlib import Path


def niceness_of_session(process="self"):
    """Return it as the only word of a list; no word where there is none: in a container the file is
    there, and empty.
    """
    path = Path(f"/proc/{process}/autogroup")
    return path.read_text().split()[-1:] if path.exists() else []

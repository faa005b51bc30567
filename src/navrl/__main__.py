"""`python -m navrl`, for launchers such as torchrun that start a module."""

from __future__ import annotations

import sys

from navrl.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""A real Chromium for the tests of pages: found where it is installed, never downloaded."""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
# Software rendering, so that WebGL is there without a graphics card; and no traffic of its own.
OPTIONS = (
    "--no-sandbox",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)
PATIENCE = 60.0  # s, before a page that shows nothing fails a test


def find_browser() -> str | None:
    """Return the path of an installed browser: NAVRL_BROWSER, or the first of NAMES."""
    wanted = os.environ.get("NAVRL_BROWSER")
    return wanted or next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def started_browser() -> Iterator[Any]:
    """Give a started browser, or skip the test and say what is missing."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="pages are not tested: pip install playwright"
    )
    path = find_browser()
    if path is None:
        pytest.skip(f"pages are not tested: none of {', '.join(NAMES)} is installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=[*OPTIONS])
        yield browser
        browser.close()


class Opened:
    """A page opened from a file or an address, everything that it complained about, and all its requests."""

    def __init__(self, browser: Any, file: Path | str, fragment: str = "", **options: Any) -> None:
        settings = {"viewport": {"width": 860, "height": 460}, "color_scheme": "light", **options}
        self.page = browser.new_page(**settings)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._heard)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto((file if isinstance(file, str) else file.as_uri()) + fragment)

    def _heard(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)

    def wait(self, expression: str) -> None:
        """Wait until an expression of JavaScript holds.

        Playwright's own waiting evaluates text, which the page's content policy forbids.
        """
        self.until(lambda: self.page.evaluate(expression), expression)

    def until(self, holds: Callable[[], Any], what: str) -> None:
        """Wait until a function returns something true."""
        give_up = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < give_up, f"never: {what}; {self.complaints}"
            time.sleep(0.02)

    def pixels(self, selector: str = "#canvas") -> np.ndarray:
        """Return an element without the cards in front of it, (height, width, 3) bytes."""
        picture = self.page.locator(selector).screenshot(style=".card { visibility: hidden }")
        return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))

"""A real browser: Debian's Chromium, driven by Playwright. A conftest takes the fixtures by importing them.

While Playwright runs, its event loop occupies the thread, and `asyncio.run` cannot be used there. So a browser is open
for the tests of one file, and servers run in processes or threads of their own.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, sync_playwright

PROGRAM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Milliseconds that a test waits for something to appear.
TIMEOUT = 15_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if PROGRAM is None:
        pytest.skip("needs chromium: apt-get install chromium, or `make test` as root")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=PROGRAM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser profile of its own: storage, cookies, network state."""
    with browser.new_context(viewport={"width": 1280, "height": 800}) as opened:
        opened.set_default_timeout(TIMEOUT)
        yield opened


@pytest.fixture
def complaints(context: BrowserContext) -> Iterator[list[str]]:
    """Collects the messages of the browser's console and errors of scripts, on all pages of the context. The test fails
    if any is left: it removes those that it expects."""
    seen: list[str] = []

    def note(message: ConsoleMessage) -> None:
        seen.append(f"{message.type}: {message.text}")

    context.on("console", note)
    context.on("weberror", lambda error: seen.append(f"error: {error.error}"))
    yield seen
    assert not seen, seen

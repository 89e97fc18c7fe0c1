"""Pages in a real browser: the example with useChat, and an EventSource with a ticket."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.support.browser import browser, complaints, context  # noqa: F401 - fixtures
from tests.support.http_client import HttpClient
from tests.support.javascript import ROOT, find_installed, find_program
from tests.support.proxy import Proxy
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, ending, say, text

MODEL = "demo"  # as the page names it


@pytest.fixture
def example(server: OutliveServer, tmp_path: Path) -> Iterator[str]:
    """The address of the example, which runs as it is, with the packages of the tests."""
    installed = find_installed("esbuild").parents[1]
    folder = tmp_path / "chat"
    shutil.copytree(ROOT / "examples" / "chat", folder, ignore=shutil.ignore_patterns("node_modules"))
    (folder / "node_modules").symlink_to(installed)
    process = subprocess.Popen(
        [find_program("node"), "server.mjs"],
        cwd=folder,
        env=os.environ | {"PORT": "0", "OUTLIVE_URL": server.url},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_reload_in_the_middle_of_an_answer_goes_on(
    example: str,
    context: BrowserContext,  # noqa: F811
    complaints: list[str],  # noqa: F811
    server: OutliveServer,
    upstream: FakeUpstream,
) -> None:
    gates = [Gate(), Gate()]
    first = len(upstream.calls(MODEL))
    upstream.queue([text("Once "), gates[0], text("upon "), gates[1], text("a time."), *ending()], MODEL)
    upstream.queue(say("Again."), MODEL)
    page = context.new_page()
    page.goto(f"{example}story")
    page.get_by_label("Message").fill("Tell me a story.")
    page.get_by_role("button", name="Send").click()
    said = page.locator("section[data-role=assistant] p")
    expect(said).to_have_text(["Once "])
    page.reload()
    expect(said).to_have_text(["Once "])
    assert page.locator("section").count() == 2
    gates[0].open()
    expect(said).to_have_text(["Once upon "])
    other = context.new_page()
    other.goto(f"{example}story")
    gates[1].open()
    for each in (page, other):
        expect(each.locator("section[data-role=assistant] p")).to_have_text(["Once upon a time."])
        expect(each.get_by_role("button", name="Send")).to_be_visible()
    page.reload()
    page.get_by_label("Message").fill("More.")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("section p")).to_have_text(["Tell me a story.", "Once upon a time.", "More.", "Again."])
    assert len(upstream.calls(MODEL)) == first + 2


def test_stop_on_a_reloaded_page_cancels_the_answer(
    example: str,
    context: BrowserContext,  # noqa: F811
    complaints: list[str],  # noqa: F811
    server: OutliveServer,
    upstream: FakeUpstream,
) -> None:
    gate = Gate()
    upstream.queue([text("Once "), gate, *ending()], MODEL)
    page = context.new_page()
    page.goto(f"{example}stopped")
    page.get_by_label("Message").fill("Tell me a story.")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("section[data-role=assistant] p")).to_have_text(["Once "])
    (running,) = server.client.list_responses("?status=in_progress")
    page.reload()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    assert server.client.wait_ended(running["id"])["status"] == "cancelled"
    gate.open()


def test_an_event_source_with_a_ticket_resumes_on_a_page_of_another_origin(
    context: BrowserContext,  # noqa: F811
    server: OutliveServer,
    upstream: FakeUpstream,
    tmp_path: Path,
) -> None:
    gate = Gate()
    flags = ("--api-key", "anna=key", "--cors-origin", server.url)
    with (
        OutliveServer(tmp_path / "server", upstream.url, *flags) as guarded,
        Proxy(guarded.port) as proxy,
    ):
        anna = HttpClient(guarded.port, "key")
        response_id = anna.submit(upstream.model([text("Once "), gate, text("upon."), *ending()]))
        ticket = anna.post(f"/v1/responses/{response_id}/tickets", {}).json()["ticket"]
        page = context.new_page()
        page.goto(f"{server.url}/healthz")  # any page of that origin
        address = f"{proxy.base_url}/responses/{response_id}?stream=true&sse_ids=true&ticket={ticket}"
        page.evaluate(
            """(address) => {
              window.numbers = [];
              window.source = new EventSource(address);
              const note = (message) => numbers.push(Number(message.lastEventId));
              for (const type of ["created", "queued", "in_progress", "output_item.added", "content_part.added",
                "output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed"]) {
                source.addEventListener(`response.${type}`, note);
              }
            }""",
            address,
        )
        page.wait_for_function("window.numbers.length >= 5")
        proxy.cut()
        gate.open()
        page.wait_for_function("window.source.readyState === EventSource.CLOSED")
        numbers = page.evaluate("window.numbers")
        assert numbers == list(range(len(anna.replay(response_id))))

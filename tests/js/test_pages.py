"""Pages in a real browser: the example with useChat, approvals, a worker, and an EventSource with a ticket."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.js.test_chat import CHAT
from tests.support.browser import browser, complaints, context  # noqa: F401 - fixtures
from tests.support.http_client import HttpClient
from tests.support.javascript import ROOT, find_installed, find_program
from tests.support.proxy import Proxy
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, call, ending, say, text

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


@pytest.fixture
def with_tools(upstream: FakeUpstream, tmp_path: Path) -> Iterator[OutliveServer]:
    (tmp_path / "tools.py").write_text(
        "from outlive.tools import tool\n\n@tool\ndef weather(city: str) -> str:\n    return f'19 degrees in {city}'\n"
    )
    env = {"PYTHONPATH": str(tmp_path)}
    with OutliveServer(tmp_path / "server", upstream.url, "--tools", "tools", env=env) as running:
        yield running


def test_a_call_that_was_asked_for_before_a_reload_is_approved_after_it(
    with_tools: OutliveServer,
    upstream: FakeUpstream,
    context: BrowserContext,  # noqa: F811
    tmp_path: Path,
) -> None:
    bundle = tmp_path / "chat.js"
    command = [str(find_installed("esbuild")), str(ROOT / "tests" / "js" / "chat.mjs"), "--bundle", "--format=iife"]
    subprocess.run([*command, "--global-name=library", f"--outfile={bundle}", "--log-level=error"], check=True)
    model = upstream.model([call(0, '{"city": "Paris"}', "call_1", "weather"), *ending("tool_calls")], say("It is 19."))
    body = {"tools": [{"type": "mcp", "server_label": "outlive", "require_approval": "always"}]}
    given = {
        "baseURL": with_tools.base_url,
        "model": model,
        "conversation": with_tools.client.create_conversation(),
        "body": body,
    }
    page = context.new_page()

    def run(code: str) -> Any:
        """Run code on a page that was just opened."""
        page.goto(f"{with_tools.url}/healthz")
        page.add_script_tag(path=bundle)
        return page.evaluate(f"async ({{ {', '.join(given)} }}) => {{ {CHAT} {code} }}", given)

    states = "chat.messages.at(-1).parts.filter((part) => part.type === 'dynamic-tool').map((part) => part.state)"
    reopen = """
        const { transport } = open(conversation);
        const chat = open(conversation, await transport.messages(conversation), { body }).chat;
    """
    asking = "const { chat } = open(conversation, [], { body }); await chat.sendMessage({ text: 'Weather?' });"
    assert run(f"{asking} return {states};") == ["approval-requested"]
    approving = """
        const waiting = chat.messages.at(-1).parts.find((part) => part.state === "approval-requested");
        await chat.addToolApprovalResponse({ id: waiting.approval.id, approved: true });
        await chat.sendMessage();
    """
    after = ["approval-responded", "output-available"]
    assert run(f"{reopen} {approving} return [{states}, texts(chat.messages)];") == [
        after,
        [["user", "Weather?"], ["assistant", "It is 19."]],
    ]
    assert run(f"{reopen} return {states};") == after
    (output,) = [m["content"] for m in upstream.calls(model)[1].messages if m["role"] == "tool"]
    assert "19 degrees in Paris" in output


def test_outlive_js_follows_an_answer_in_a_worker_through_a_cut(
    context: BrowserContext,  # noqa: F811
    server: OutliveServer,
    upstream: FakeUpstream,
) -> None:
    gate = Gate()
    with Proxy(server.port) as proxy:
        origin = proxy.base_url.removesuffix("/v1")
        page = context.new_page()
        page.goto(f"{origin}/healthz")
        page.evaluate(
            """([address, model]) => {
              const code = `
                const { Outlive } = await import("${address}/outlive.js");
                const stream = new Outlive({ baseURL: "${address}/v1" }).stream({ model: "${model}", input: "Hi" });
                for await (const event of stream) postMessage([event.sequence_number, event.delta ?? null]);
                postMessage(null);`;
              window.told = [];
              const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
              window.worker = new Worker(url, { type: "module" });
              worker.onmessage = ({ data }) => told.push(data);
              worker.onerror = (event) => told.push(event.message);
            }""",
            [origin, upstream.model([text("Once "), gate, text("upon."), *ending()])],
        )
        page.wait_for_function("window.told.some((each) => each?.[1] === 'Once ')")
        proxy.cut()
        gate.open()
        page.wait_for_function("window.told.at(-1) === null")
        told = page.evaluate("window.told")[:-1]
    assert [number for number, _ in told] == list(range(len(told)))
    assert "".join(delta or "" for _, delta in told) == "Once upon."


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

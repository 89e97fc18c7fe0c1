"""The other pages of the console: they agree with the API, can be used by anyone, and stay fast."""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.console.conftest import MakeServer
from tests.support.postgres import DATABASES
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, Pause, Refuse, call, ending, reasoning, say, text
from tests.support.waiting import wait_until

MARKDOWN = "# Title\n\n**bold**, `code`\n\n```python\nprint(1)\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> quoted\n"


@pytest.fixture(scope="module")
def made(server: OutliveServer, upstream: FakeUpstream) -> dict[str, str]:
    """The ids of responses in several statuses, and of a conversation."""
    client = server.client
    conversation = client.create_conversation(metadata={"title": "A conversation"})
    tools = [{"type": "mcp", "server_label": "outlive"}]
    paris = [reasoning("Hm"), call(0, '{"city": "Paris"}', "call_1", "weather"), *ending("tool_calls")]
    slow = [step for word in ("One ", "two ", "three.") for step in (Pause(0.15), text(word))]
    ids = {
        "conversation": conversation,
        "completed": client.create(upstream.model(say(MARKDOWN)), conversation=conversation).json()["id"],
        "tools": client.create(upstream.model(paris, [*slow, *ending()]), tools=tools).json()["id"],
        "running": client.submit(upstream.model([text("Still here"), Gate()])),
    }
    failed = client.submit(upstream.model([Refuse(400)]))
    client.wait_ended(failed)
    return ids | {"failed": failed}


def cells(page: Page, response_id: str) -> dict[str, str]:
    row = page.locator(f".row[data-id={response_id}]")
    return {str(cell.get_attribute("data-name")): cell.inner_text() for cell in row.locator("[role=cell]").all()}


def test_the_list_agrees_with_the_api(
    server: OutliveServer, made: dict[str, str], context: BrowserContext, complaints: list[str]
) -> None:
    page = context.new_page()
    page.goto(f"{server.url}/#/responses")
    page.wait_for_selector(".rows .row")
    listed = server.client.list_responses("?details=true&limit=100")
    shown = page.locator(".rows .row").all()
    assert [row.get_attribute("data-id") for row in shown] == [each["id"] for each in listed]
    for each in listed:
        seen = cells(page, each["id"])
        assert seen["Status"] == each["status"].replace("in_progress", "running")
        assert (seen["Model"], seen["Node"]) == (each["model"], each["outlive"]["node"])
        assert seen["Attempts"] == str(each["outlive"]["attempts"])
        if each["usage"]:
            assert seen["Tokens"] == f"{each['usage']['input_tokens']} + {each['usage']['output_tokens']}"
        if (details := each["outlive"]).get("ended_at"):
            rate = details["events"] / max(details["ended_at"] - each["created_at"], 0.001)
            assert float(seen["Events/s"].replace(",", "")) == pytest.approx(rate, rel=0.1, abs=0.5)
    page.get_by_label("Status").select_option("failed")
    expect(page.locator(".rows .row")).to_have_count(1)
    expect(page.locator(".rows .row")).to_have_attribute("data-id", made["failed"])
    page.get_by_label("Status").select_option("")
    page.get_by_label("Conversation", exact=True).fill(made["conversation"])
    page.keyboard.press("Enter")
    expect(page.locator(".rows .row")).to_have_count(1)
    expect(page.locator(".rows .row")).to_have_attribute("data-id", made["completed"])
    page.get_by_label("Conversation", exact=True).fill("")
    page.get_by_label("Search by id").fill(made["tools"][-8:])
    expect(page.locator(".rows .row")).to_have_count(1)
    page.get_by_label("Search by id").fill(made["tools"])
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text(made["tools"])


def test_the_list_is_live(
    server: OutliveServer, upstream: FakeUpstream, context: BrowserContext, complaints: list[str]
) -> None:
    page = context.new_page()
    page.goto(f"{server.url}/#/responses")
    page.wait_for_selector(".rows")
    gate = Gate()
    new = server.client.submit(upstream.model([text("Hi"), gate, *ending()]))
    row = page.locator(f".row[data-id={new}]")
    expect(row).to_contain_text("running")
    gate.open()
    expect(row).to_contain_text("completed")


def test_one_response_agrees_with_the_api(
    server: OutliveServer, made: dict[str, str], context: BrowserContext, complaints: list[str]
) -> None:
    response_id = made["tools"]
    page = context.new_page()
    page.goto(f"{server.url}/#/responses/{response_id}")
    timeline = server.client.get(f"/v1/responses/{response_id}/timeline").json()
    names = {
        "queued": "Queued",
        "start": "Started",
        "first_token": "First token",
        "tool_call": "Tool call",
        "end": "Ended",
    }
    rows = page.locator(".timeline tbody tr")
    expect(rows).to_have_count(len(timeline["entries"]))
    for row, entry in zip(rows.all(), timeline["entries"], strict=True):
        shown = row.locator("td").all_inner_texts()
        assert shown[0] == names[entry["type"]]
        assert shown[2] == ("" if entry["sequence_number"] is None else f"#{entry['sequence_number']}")
    expect(page.locator(".facts")).to_contain_text(str(timeline["events"]))
    frames = server.client.replay(response_id)
    page.get_by_label("Event number").fill(str(len(frames) - 1))
    page.keyboard.press("Enter")
    expect(page.locator(".events > pre")).to_contain_text('"type": "response.completed"')
    page.get_by_role("button", name="Replay").click()
    expect(page.locator(".player")).to_contain_text(f"of {len(frames)}")
    expect(page.get_by_role("button", name="Replay", exact=True)).to_be_visible()
    expect(page.locator("[data-role=assistant]")).to_contain_text("One two three.")
    page.get_by_label("Speed").select_option("0.25")
    began = time.monotonic()
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("button", name="Stop replay")).to_be_visible()
    expect(page.get_by_role("button", name="Replay", exact=True)).to_be_visible()
    assert time.monotonic() - began > 1.5  # its three words took 0.45 s


def test_a_response_can_be_copied_cancelled_and_deleted(
    server: OutliveServer, upstream: FakeUpstream, context: BrowserContext, complaints: list[str]
) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server.url)
    response_id = server.client.submit(upstream.model([text("Hi"), Gate()]), instructions="It's me")
    page = context.new_page()
    page.goto(f"{server.url}/#/responses/{response_id}")
    page.get_by_role("button", name="Copy as curl").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(f"curl {server.url}/v1/responses") and r"It'\''s me" in copied
    page.get_by_role("button", name="Copy as Python").click()
    code: Any = compile(page.evaluate("navigator.clipboard.readText()"), "copied", "exec")
    assert "OpenAI" in code.co_names
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("h1")).to_contain_text("cancelled")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    page.wait_for_url("**/#/responses")
    assert server.client.get(f"/v1/responses/{response_id}").status == 404


def test_the_overview_shows_the_metrics_of_the_server(
    server: OutliveServer, made: dict[str, str], context: BrowserContext, complaints: list[str]
) -> None:
    page = context.new_page()
    page.goto(f"{server.url}/#/overview")
    expect(page.locator(".chart", has_text="Running")).to_contain_text("1 running, 0 queued")
    expect(page.locator(".chart", has_text="Database size")).to_contain_text("B")
    expect(page.locator("table", has_text="Nodes")).to_contain_text("needs none")
    expect(page.locator("table", has_text="Ended responses")).to_contain_text("failed")
    expect(page.locator(".chart polyline").first).to_have_attribute("points", re.compile(r"\d,\d"))


def test_the_overview_adds_up_the_processes_of_a_server_on_postgres(
    servers: MakeServer, upstream: FakeUpstream, context: BrowserContext, complaints: list[str]
) -> None:
    server = servers("--processes", "2", database_url=DATABASES.create())
    wait_until(lambda: server.log.count("listening on") == 2, "both processes serve")
    for _ in range(6):  # each on a connection of its own, so that both processes get some
        server.client.create(upstream.model(say("Hi")))
    server.client.submit(upstream.model([text("Still here"), Gate()]))
    page = context.new_page()
    page.goto(f"{server.url}/#/overview")
    expect(page.locator(".chart", has_text="Running")).to_contain_text("1 running, 0 queued")
    expect(page.locator(".chart", has_text="Database size")).to_contain_text("MB")
    nodes = page.locator("table", has_text="Nodes").locator("tbody tr")
    expect(nodes).to_have_count(2)
    for row in nodes.all():
        expect(row).to_contain_text("ago")
    assert sorted(row.locator("td").nth(1).inner_text() for row in nodes.all()) == ["0", "1"]
    ended = page.locator("table", has_text="Ended responses").locator("tbody tr")
    assert [row.locator("td").all_inner_texts()[::2] for row in ended.all()] == [["completed", "6"]]


SERIOUS = ("serious", "critical")
# Each page, and what shows that it is complete.
PAGES = {
    "#/chat": ".welcome",
    "#/chat/{conversation}": ".end-line",
    "#/responses": ".rows .row",
    "#/responses/{tools}": ".lines li",
    "#/responses/{running}": ".lines li",
    "#/overview": ".tables td + td",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_page(
    server: OutliveServer, made: dict[str, str], browser: Browser, scheme: Any
) -> None:
    with browser.new_context(color_scheme=scheme, bypass_csp=False) as context:
        for address, ready in PAGES.items():
            page = context.new_page()
            page.goto(f"{server.url}/{address.format(**made)}")
            page.wait_for_selector(ready)
            if address.startswith("#/chat"):
                page.get_by_text("Options").click()
            # What differs in the dark is colour alone.
            found = (
                Axe()
                .run(page, options={"runOnly": ["color-contrast"]} if scheme == "dark" else None)
                .response["violations"]
            )
            serious = [
                (each["id"], [node["html"] for node in each["nodes"]]) for each in found if each["impact"] in SERIOUS
            ]
            assert not serious, (address, serious)
            page.close()


def test_the_pages_can_be_used_by_keyboard(
    server: OutliveServer, made: dict[str, str], context: BrowserContext, complaints: list[str]
) -> None:
    page = context.new_page()
    page.goto(f"{server.url}/#/responses")
    page.wait_for_selector(".rows .row")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for _ in range(5):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.row') !== null")
    page.keyboard.press("Enter")
    page.wait_for_selector(".timeline")


@pytest.mark.parametrize("address", PAGES)
def test_a_phone_shows_every_page_without_scrolling_sideways(
    server: OutliveServer, made: dict[str, str], browser: Browser, address: str
) -> None:
    with browser.new_context(viewport={"width": 390, "height": 780}) as context:
        page = context.new_page()
        page.goto(f"{server.url}/{address.format(**made)}")
        page.wait_for_selector(PAGES[address])
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_first_paint_takes_less_than_200_ms(server: OutliveServer, browser: Browser) -> None:
    paints = []
    for _ in range(5):
        with browser.new_context() as context:
            page = context.new_page()
            page.goto(server.url)
            page.wait_for_selector("#question")
            paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
    print(f"first paint after {sorted(paints)} ms")
    assert min(paints) < 200, paints


def test_a_list_of_10000_responses_scrolls(
    servers: MakeServer, upstream: FakeUpstream, context: BrowserContext, complaints: list[str]
) -> None:
    server = servers()
    server.client.create(upstream.model(say("Hi")))
    server.kill()
    with closing(sqlite3.connect(server.database)) as db, db:
        (first,) = db.execute("SELECT id FROM responses").fetchone()
        columns = [
            row[1] for row in db.execute("PRAGMA table_info(responses)") if row[1] not in ("key", "id", "snapshot")
        ]
        names = ", ".join(columns)
        db.execute(
            f"""WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9999)
            INSERT INTO responses (id, snapshot, {names})
            SELECT ?1 || printf('%06d', i), CAST(replace(CAST(snapshot AS TEXT), id, ?1 || printf('%06d', i)) AS BLOB),
                   {names} FROM responses, n WHERE id = ?2""",
            (first[:-6], first),
        )
    server.start()
    page = context.new_page()
    page.goto(f"{server.url}/#/responses")
    page.wait_for_selector(".rows .row")
    scroller = page.locator(".scroller")
    to_end = "(node) => { node.scrollTop = node.scrollHeight; }"
    for _ in range(500):
        scroller.evaluate(to_end)
        if page.locator("text=10,000 responses").count():
            break
    expect(page.locator(".filters")).to_contain_text("10,000 responses")
    scroller.evaluate(to_end)
    expect(page.locator(f".row[data-id={first}]")).to_be_visible()
    assert page.locator(".rows .row").count() < 100
    took = page.evaluate(
        """async () => {
            const node = document.querySelector(".scroller");
            const times = [];
            for (let step = 0; step < 60; step++) {
                node.scrollTop = (node.scrollHeight * step) / 60;
                const begun = performance.now();
                await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
                times.push(performance.now() - begun);
            }
            return times.sort((a, b) => a - b);
        }"""
    )
    print(f"two frames of scrolling take {took[30]:.0f} ms (median), {took[-1]:.0f} ms at most")
    assert took[30] < 150

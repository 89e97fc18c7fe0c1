"""The chat of the console: an answer outlives its page, its network and its server, and stays text."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import BrowserContext, Page, Request, Route, expect

from tests.console.conftest import MakeServer
from tests.support.http_client import text_of
from tests.support.proxy import Proxy
from tests.support.scripts import stream_words, words
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, Pause, Step, call, ending, reasoning, say, text

PIECES = words(40)
WHOLE = "".join(PIECES).strip()


def open_chat(context: BrowserContext, server: OutliveServer, model: str, address: str = "#/chat") -> Page:
    """Open the page and choose a model, which the upstream need not list."""
    page = context.new_page()
    page.goto(f"{server.url}/{address}")
    choose(page, model)
    return page


def choose(page: Page, model: str) -> None:
    page.locator("#model option").first.wait_for(state="attached")
    page.evaluate(
        """(model) => {
            const select = document.getElementById("model");
            select.append(Object.assign(document.createElement("option"), { value: model, textContent: model }));
            select.value = model;
            select.dispatchEvent(new Event("change"));
        }""",
        model,
    )


def ask(page: Page, question: str) -> None:
    page.get_by_label("Question", exact=True).fill(question)
    page.keyboard.press("Enter")


def answer_of(page: Page) -> str:
    return page.locator("[data-role=assistant] .prose").last.inner_text().strip()


def running_id(page: Page) -> str:
    page.wait_for_selector("[data-response]")
    return str(page.locator("[data-response]").last.get_attribute("data-response"))


@pytest.mark.parametrize("continuation", ["prefill", "none"])
def test_an_answer_outlives_its_page_and_a_killed_server(
    servers: MakeServer, upstream: FakeUpstream, context: BrowserContext, complaints: list[str], continuation: str
) -> None:
    server = servers(continuation=continuation)
    model = upstream.model([*map(text, PIECES[:10]), Gate()], stream_words(PIECES))
    page = open_chat(context, server, model)
    ask(page, "Count")
    expect(page.locator("[data-role=assistant]")).to_contain_text("w9")
    address = page.url.partition("/#")[2]
    page.close()
    server.kill()
    server.start()

    page = context.new_page()
    page.goto(f"{server.url}/#{address}")
    expect(page.locator("[data-role=user]")).to_have_text("Count")
    if continuation == "prefill":
        expect(page.locator(".end-line")).to_contain_text("completed")
        assert answer_of(page) == WHOLE
        expect(page.locator(".end-line")).to_contain_text("2 attempts")
    else:
        expect(page.locator(".end-line")).to_contain_text("incomplete")
        assert answer_of(page) == "".join(PIECES[:10]).strip()
        expect(page.get_by_text("This answer was cut off.")).to_be_visible()


def test_a_conversation_opens_at_its_end(
    server: OutliveServer, upstream: FakeUpstream, context: BrowserContext, complaints: list[str]
) -> None:
    conversation = server.client.create_conversation()
    lines = [f"line {number}\n\n" for number in range(30)]
    for _ in range(5):
        server.client.create(upstream.model(say(*lines)), conversation=conversation)
    page = context.new_page()
    page.goto(f"{server.url}/#/chat/{conversation}")
    expect(page.locator(".end-line")).to_be_in_viewport()
    expect(page.get_by_text("line 29").last).to_be_in_viewport()
    assert complaints == []


def test_two_pages_follow_one_answer_and_the_second_stops_it(
    server: OutliveServer, upstream: FakeUpstream, context: BrowserContext, complaints: list[str]
) -> None:
    gate = Gate()
    model = upstream.model([text("One "), gate, text("two "), Gate()])
    first = open_chat(context, server, model)
    ask(first, "Go on")
    expect(first.locator("[data-role=assistant]")).to_contain_text("One")
    second = context.new_page()
    second.goto(first.url)
    expect(second.locator("[data-role=assistant]")).to_contain_text("One")
    gate.open()
    for page in (first, second):
        expect(page.locator("[data-role=assistant]")).to_contain_text("One two")
    second.get_by_role("button", name="Stop").click()
    for page in (first, second):
        expect(page.locator(".end-line")).to_contain_text("cancelled")
        assert answer_of(page) == "One two"
        expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def test_an_answer_goes_on_after_the_network_was_cut_without_a_lost_or_doubled_letter(
    server: OutliveServer, upstream: FakeUpstream, context: BrowserContext, complaints: list[str]
) -> None:
    gate, half = Gate(), len(PIECES) // 2
    model = upstream.model([*map(text, PIECES[:half]), gate, *map(text, PIECES[half:]), *ending()])
    with Proxy(server.port) as network:
        page = context.new_page()
        page.goto(network.redirect(f"{server.url}/"))
        choose(page, model)
        ask(page, "Count")
        expect(page.locator("[data-role=assistant]")).to_contain_text(PIECES[half - 1].strip())
        context.set_offline(True)  # for new connections; the open ones are cut by hand
        network.cut()
        expect(page.locator("#state")).to_contain_text("Reconnecting")
        gate.open()
        server.client.wait_ended(running_id(page))
        assert answer_of(page) == "".join(PIECES[:half]).strip()
        context.set_offline(False)
        expect(page.locator(".end-line")).to_contain_text("completed", timeout=15_000)
        assert answer_of(page) == WHOLE
        page.close()
    # The browser itself notes each request that failed; the page says nothing.
    assert all("net::ERR_" in each for each in complaints)
    complaints.clear()


HOSTILE = """\
<script>window.hacked = 1</script> <img src="http://evil.test/a.png" onerror="window.hacked = 1">
<a href="javascript:window.hacked = 1">link</a> &lt;b&gt; <style>body { display: none }</style>

[click](javascript:window.hacked=1) [go](http://evil.test/) http://evil.test/plain ![pixel](http://evil.test/p.png?secret)

![dot](data:image/svg+xml;base64,PHN2Zy8+) ![dot](data:text/html,<script>1</script>)

<iframe src="http://evil.test/"></iframe><meta http-equiv="refresh" content="0;url=http://evil.test/">

```html
<script>window.hacked = 1</script>
```
"""


def test_a_hostile_answer_is_shown_as_text(
    server: OutliveServer, upstream: FakeUpstream, context: BrowserContext, complaints: list[str]
) -> None:
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    context.on("request", note)
    page = open_chat(context, server, upstream.model(say(*re.findall(r"(?s).{1,7}", HOSTILE))))
    ask(page, "Attack")
    expect(page.locator(".end-line")).to_contain_text("completed")
    shown = answer_of(page)
    for line in ("<script>window.hacked = 1</script>", "<iframe src=", "&lt;b&gt;", "<style>body", 'onerror="'):
        assert line in shown
    prose = page.locator("[data-role=assistant] .prose").last
    assert prose.locator("script, img, iframe, a, style, meta, [onerror], [href], [src]").count() == 0
    assert page.evaluate("window.hacked") is None
    assert all(url.startswith(server.url) for url in asked)
    # An address is opened only after a question that shows it.
    prose.get_by_role("button", name="go", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("http://evil.test/")
    dialog.get_by_role("button", name="Stay here").click()
    expect(dialog).to_be_hidden()
    assert len(context.pages) == 1


DOT = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"


def test_an_image_in_the_answer_is_shown_and_code_is_copied(
    server: OutliveServer, upstream: FakeUpstream, context: BrowserContext, complaints: list[str]
) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server.url)
    page = open_chat(context, server, upstream.model(say(f"![A dot]({DOT})\n\n", "```python\nprint(1)\n```\n")))
    ask(page, "Draw")
    expect(page.locator(".end-line")).to_contain_text("completed")
    image = page.locator("[data-role=assistant]").get_by_role("img", name="A dot")
    assert image.evaluate("(node) => node.decode().then(() => node.naturalWidth)") == 1
    page.get_by_role("button", name="Copy").first.click()
    assert page.evaluate("navigator.clipboard.readText()") == "print(1)"


def test_a_second_question_names_the_answer_that_holds_the_conversation(
    server: OutliveServer, upstream: FakeUpstream, context: BrowserContext, complaints: list[str]
) -> None:
    page = open_chat(context, server, upstream.model([text("One "), Gate()]))
    ask(page, "First")
    expect(page.locator("[data-role=assistant]")).to_contain_text("One")
    ask(page, "Second")
    notice = page.get_by_role("alert")
    expect(notice).to_contain_text(running_id(page))
    assert page.get_by_label("Question", exact=True).input_value() == "Second"  # it is not lost
    expect(page.get_by_role("status").first).to_have_text("Live")  # the first answer, still
    notice.get_by_role("button", name="Stop it").click()
    expect(page.locator(".end-line")).to_contain_text("cancelled")
    assert all("400 (Bad Request)" in each for each in complaints)  # noted by the browser
    complaints.clear()


def test_reasoning_and_calls_are_folded_and_an_approval_is_a_button(
    server: OutliveServer, upstream: FakeUpstream, context: BrowserContext, complaints: list[str]
) -> None:
    paris = [reasoning("Which city?"), call(0, '{"city": "Paris"}', "call_1", "weather"), *ending("tool_calls")]
    model = upstream.model(paris, say("It is **19** degrees."))
    client = server.client
    conversation = client.create_conversation()
    tools = [{"type": "mcp", "server_label": "outlive", "require_approval": "always"}]
    client.create(model, input="Weather?", conversation=conversation, tools=tools)
    page = context.new_page()
    page.goto(f"{server.url}/#/chat/{conversation}")
    choose(page, model)
    expect(page.get_by_text("Which city?")).to_be_hidden()
    page.get_by_text("Reasoning").click()
    expect(page.get_by_text("Which city?")).to_be_visible()
    expect(page.locator(".approval")).to_contain_text("Paris")
    page.get_by_role("button", name="Approve").click()
    expect(page.locator("[data-role=assistant] strong")).to_have_text("19")
    folded = page.locator("details.folded", has_text="weather").last
    expect(folded.get_by_text('"degrees": 19')).to_be_hidden()
    folded.locator("summary").click()
    expect(folded.get_by_text('"degrees": 19')).to_be_visible()


def test_the_options_are_sent_with_the_question(
    server: OutliveServer, upstream: FakeUpstream, context: BrowserContext, complaints: list[str]
) -> None:
    model = upstream.model(say("Yes."))
    page = open_chat(context, server, model)
    page.get_by_text("Options").click()
    page.get_by_label("Instructions").fill("Be brief.")
    page.get_by_label("Background").check()
    ask(page, "Really?")
    expect(page.locator(".end-line")).to_contain_text("completed")
    (made,) = [
        each for each in server.client.list_responses() if each["background"] and each["model"] == "upstream-model"
    ]
    assert server.client.retrieve(made["id"])["instructions"] == "Be brief."
    page.get_by_label("Store").uncheck()
    expect(page.get_by_label("Background")).to_be_disabled()
    count = len(server.client.list_responses())
    ask(page, "And this?")
    expect(page.locator(".answer").last).to_contain_text("Yes.")
    assert len(server.client.list_responses()) == count


def test_a_question_that_is_sent_before_the_models_are_listed_waits_for_them(
    server: OutliveServer, context: BrowserContext, complaints: list[str]
) -> None:
    page = context.new_page()
    listing: list[Route] = []
    page.route("**/v1/models", lambda route: listing.append(route))
    page.goto(server.url)
    ask(page, "Hi")
    page.wait_for_timeout(300)
    listing[0].continue_()
    expect(page.locator(".end-line")).to_contain_text("completed")


def test_a_key_is_asked_for_and_kept_for_the_tab_only(
    servers: MakeServer, upstream: FakeUpstream, context: BrowserContext, complaints: list[str]
) -> None:
    server = servers("--api-key", "ann=secret-key")
    page = context.new_page()
    page.goto(server.url)
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Use this key").click()
    expect(page.get_by_role("dialog")).to_contain_text("does not know that key")
    page.get_by_label("API key").fill("secret-key")
    page.get_by_role("button", name="Use this key").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    choose(page, upstream.model(say("Hello Ann.")))
    ask(page, "Hi")
    expect(page.locator("[data-role=assistant]")).to_contain_text("Hello Ann.")
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    page.reload()
    expect(page.locator("[data-role=assistant]")).to_contain_text("Hello Ann.")
    other = context.new_page()
    other.goto(server.url)
    expect(other.get_by_role("dialog")).to_be_visible()
    assert all("401 (Unauthorized)" in each for each in complaints)
    complaints.clear()


def test_a_page_of_another_site_cannot_drive_a_server_without_keys(
    server: OutliveServer, upstream: FakeUpstream, context: BrowserContext
) -> None:
    page = context.new_page()
    page.route("http://evil.test/", lambda route: route.fulfill(body="<p>Evil</p>", content_type="text/html"))
    page.goto("http://evil.test/")
    before = len(server.client.list_responses())
    outcome = page.evaluate(
        """async (url) => {
            const ask = (path, options) => fetch(url + path, options).then((answer) => answer.status, () => "refused");
            const body = JSON.stringify({ model: "m", input: "Hi" });
            return [
                await ask("/v1/responses"),
                await ask("/v1/responses", { method: "POST", body, headers: { "content-type": "application/json" } }),
                await ask("/v1/responses", { method: "POST", body, mode: "no-cors" }),
            ];
        }""",
        server.url,
    )
    assert outcome[:2] == ["refused", "refused"]
    assert len(server.client.list_responses()) == before


def test_an_answer_of_5000_tokens_streams_without_the_page_getting_slower(
    server: OutliveServer, upstream: FakeUpstream, context: BrowserContext, complaints: list[str]
) -> None:
    steps: list[Step] = []
    for number in range(5000):
        end = "\n\n" if number % 60 == 59 else "\n- " if number % 20 == 19 else " "
        steps += [text(f"**word{number}**{end}" if number % 9 == 0 else f"word{number}{end}")]
        if number % 4 == 3:
            steps.append(Pause(0.003))
    page = open_chat(context, server, upstream.model([*steps, *ending()]))
    page.evaluate(
        """() => {
            window.frames_ = [];
            let last = performance.now();
            const note = (now) => {
                window.frames_.push(now - last);
                last = now;
                requestAnimationFrame(note);
            };
            requestAnimationFrame(note);
        }"""
    )
    ask(page, "Write a lot")
    page.wait_for_selector("[data-role=assistant]")
    page.evaluate("window.frames_.length = 0")
    expect(page.locator(".end-line")).to_contain_text("completed", timeout=60_000)
    frames: list[float] = page.evaluate("window.frames_")
    assert text_of(server.client.retrieve(running_id(page))).count("word") == 5000
    assert page.locator("[data-role=assistant]").inner_text().count("word") == 5000
    quarter = len(frames) // 4
    first, last = sorted(frames[:quarter]), sorted(frames[-quarter:])
    typical, late = first[len(first) // 2], last[len(last) // 2]
    print(f"{len(frames)} frames, median {typical:.1f} ms in the first quarter, {late:.1f} ms in the last")
    assert late < max(2 * typical, 50), (typical, late)

"""Makes the pictures of the console for the pages: `make pictures`. They show a real server that is really killed."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.browser import FLAGS, PROGRAM
from tests.support.http_client import HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import DONE, FakeUpstream, Json, Pause, Script, finish, reasoning, text, usage

IMAGES = Path(__file__).parents[2] / "docs" / "images"
QUESTION = "What happens to an answer when the server is killed?"
ANSWER = """\
Nothing that you have seen is lost. Here is why:

1. Every event is **committed before it is shown**.
2. The run belongs to the server, not to this page.
3. After a crash, the next process *claims the lease* and the model continues **in the same sentence**.

```python
stream = client.responses.retrieve(response_id, stream=True, starting_after=42)
for event in stream:
    print(event.delta, end="")
```

| what happens | what you see |
|---|---|
| the tab is closed | the answer goes on |
| the network is cut | *Reconnecting*, then the next letter |
| `kill -9` | a pause, then the next letter |

So close this tab whenever you like.
"""
PIECES = re.findall(r"\S+\s*", ANSWER)
CARD = """<body style="margin:0;height:100vh;display:grid;place-items:center;background:#121716;color:#e4eae9;
font:22px ui-monospace,'DejaVu Sans Mono',monospace"><p>{}</p></body>"""


def answer(body: Json) -> Script:
    """Write the answer, or the rest of it if the request ends with its beginning."""
    last = body["messages"][-1]
    begun = last["content"] if last["role"] == "assistant" else ""
    rest = re.findall(r"\s*\S+\s*", ANSWER[len(begun) :])
    thought = [] if begun else [reasoning("The reader asks about durability. ")]
    return [*thought, *(step for piece in rest for step in (Pause(0.05), text(piece))), finish(), usage(31, 148), DONE]


def answer_after(seconds: float) -> Callable[[Json], Script]:
    return lambda body: [Pause(seconds), *answer(body)]


def save(page: Page, name: str) -> None:
    shot = Image.open(io.BytesIO(page.screenshot()))
    shot.quantize(128, dither=Image.Dither.NONE).save(IMAGES / name, optimize=True)


class Recording:
    """Frames with the milliseconds for which each is shown."""

    def __init__(self) -> None:
        self._frames: list[Image.Image] = []
        self._durations: list[int] = []

    def add(self, page: Page, duration: int) -> None:
        self._frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        self._durations.append(duration)

    def save(self, name: str) -> None:
        palette = self._frames[-1].quantize(48, dither=Image.Dither.NONE)
        frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in self._frames]
        frames[0].save(IMAGES / name, save_all=True, append_images=frames[1:], duration=self._durations, loop=0)


def record(browser: Browser, server: OutliveServer, model: str) -> str:
    """Record "closed, killed, still there". Returns the address of the conversation."""
    recording = Recording()
    context = browser.new_context(viewport={"width": 860, "height": 560})

    def show(sentence: str, duration: int = 1600) -> None:
        card = context.new_page()
        card.set_content(CARD.format(sentence))
        recording.add(card, duration)
        card.close()

    page = context.new_page()
    page.goto(server.url)
    page.wait_for_selector("#model option", state="attached")
    page.evaluate("(id) => document.getElementById('model').append(new Option(id, id, true, true))", model)
    page.fill("#question", QUESTION)
    recording.add(page, 900)
    page.keyboard.press("Enter")
    for number in (4, 14, 22, 30):
        page.get_by_text(PIECES[number].strip("*. \n")).first.wait_for()
        recording.add(page, 500)
    address = page.url
    page.close()
    show("The tab is closed.")
    server.kill()
    show(f"$ kill -9 {server.pid}")
    server.start()
    show("$ outlive serve")
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("[data-role=assistant]")
    for _ in range(5):
        recording.add(page, 500)
        page.wait_for_timeout(500)
    page.wait_for_selector(".end-line")
    page.wait_for_timeout(300)
    recording.add(page, 4000)
    recording.save("closed-killed-still-there.png")
    context.close()
    return address


def take(browser: Browser, server: OutliveServer, address: str, client: HttpClient) -> None:
    """Take a picture of each page."""
    conversation = address.rpartition("/")[2]
    (response,) = client.list_responses(f"?conversation={conversation}")
    for suffix in ("", "-dark"):
        context = browser.new_context(
            viewport={"width": 1200, "height": 760}, color_scheme="dark" if suffix else "light"
        )
        page = context.new_page()
        for name, hash_ in (
            ("chat", f"#/chat/{conversation}"),
            ("response", f"#/responses/{response['id']}"),
            ("responses", "#/responses"),
            ("overview", "#/overview"),
        ):
            page.goto(f"{server.url}/{hash_}")
            page.wait_for_timeout(9000 if name == "overview" else 2500)
            if not suffix or name == "chat":
                save(page, f"console-{name}{suffix}.png")
        context.close()


def main() -> None:
    assert PROGRAM is not None, "chromium is not installed"
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, FakeUpstream() as upstream, sync_playwright() as playwright:
        config = Path(folder) / "outlive.toml"
        config.write_text(f'[upstreams.demo]\nurl = "{upstream.url}"\ncontinuation = "prefill"\n')
        # Nodes are named after their machine: that of the pictures has a neutral name.
        (Path(folder) / "sitecustomize.py").write_text("import socket\nsocket.gethostname = lambda: 'node'\n")
        server = OutliveServer(Path(folder), None, "--config", str(config), env={"PYTHONPATH": folder}).start()
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=FLAGS)
        client, model = server.client, upstream.model(answer)
        for title in ("Plan a week in Lisbon", "Why is the sky blue?", "Review my migration"):
            conversation = client.create_conversation(metadata={"title": title})
            client.submit(upstream.model(answer), input=title, conversation=conversation)
        address = record(browser, server, model)
        for number in range(30):
            client.submit(upstream.model(answer_after(number)), input=f"Question {number}")
        take(browser, server, address, client)
        browser.close()
        server.kill()


if __name__ == "__main__":
    main()

"""The five reports, one function each: the steps of its author, and the claims about this server."""

from __future__ import annotations

import secrets
import time

from demo.client import Client, Json, Stream, is_text, text_of
from demo.server import Server
from demo.stage import Stage

MODEL = "gpt-4o"  # as in the reports; the embedded model answers to any name
_DELTAS_BEFORE_THE_BREAK = 40
_TRIES = 3
_TERMINAL = {"completed", "incomplete", "failed", "cancelled"}


class Demo:
    """The server, the client, the stage, and the steps that several chapters share."""

    def __init__(self, server: Server, stage: Stage) -> None:
        self.server = server
        self.client = Client(server.port)
        self.stage = stage

    def new_conversation(self) -> str:
        self.stage.request("POST", "/v1/conversations")
        return str(self.client.post("/v1/conversations").body["id"])

    def create(self, body: Json) -> Json:
        self.stage.request("POST", "/v1/responses", body)
        answer = self.client.post("/v1/responses", body)
        if answer.status != 200:
            raise RuntimeError(f"POST /v1/responses answered {answer.status}: {answer.body}")
        return answer.body

    def wait(self, response_id: str) -> Json:
        """Return the response once it has ended; the server holds the GET until then."""
        path = f"/v1/responses/{response_id}?wait=60"
        self.stage.request("GET", path)
        return self.client.get(path).body

    def items(self, conversation: str) -> list[Json]:
        path = f"/v1/conversations/{conversation}/items?order=asc&limit=100"
        self.stage.request("GET", path)
        data: list[Json] = self.client.get(path).body["data"]
        return data

    def read_until_break(self, conversation: str, question: str) -> Stream:
        """Return a stream in mid-answer. If the small model's answer is too short, ask again."""
        for _ in range(_TRIES):
            body = {"model": MODEL, "conversation": conversation, "input": question, "stream": True, "store": True}
            body["max_output_tokens"] = 200
            self.stage.request("POST", "/v1/responses", body)
            stream = self.client.stream("/v1/responses", body)
            for event in stream:
                self.show(event)
                if sum(map(is_text, stream.events)) >= _DELTAS_BEFORE_THE_BREAK:
                    return stream
            self.stage.note("That was a short answer; asking again.")
        raise RuntimeError("Every answer of the model was too short to be interrupted.")

    def show(self, event: Json, style: str = "white") -> None:
        if is_text(event):
            self.stage.show_text(event["delta"], style)

    def resume(self, seen: Stream) -> Stream:
        """Read from the number last seen to the end."""
        path = f"/v1/responses/{seen.response_id}?stream=true&starting_after={seen.last}"
        self.stage.request("GET", path)
        stream = self.client.stream(path)
        self.stage.show_text("... " + seen.text[-60:].replace("\n", " "), "dim")
        for event in stream:
            self.show(event, "green")
        self.stage.show_text("\n")
        return stream


def background_and_closed_tab(demo: Demo) -> None:
    """Report 1: background runs are missing in their conversation, and a closed tab ends the answer."""
    stage = demo.stage
    complaint = "a background response never shows up in its conversation, and a closed tab ends the answer for good."
    stage.chapter(1, "The conversation is whole, and a closed tab changes nothing", complaint)
    conversation = demo.new_conversation()
    body = {"model": MODEL, "conversation": conversation, "input": "Who are you?", "background": True}
    begun = demo.create(body | {"max_output_tokens": 60})
    stage.claim(f"accepted at once, {begun['status']}: {begun['id']}", begun["status"] in {"queued", "in_progress"})
    ended = demo.wait(begun["id"])
    items = demo.items(conversation)
    roles = [item.get("role") for item in items]
    stage.claim("question and answer are in the conversation", roles == ["user", "assistant"], roles)
    stage.claim("the answer is the response's own", text_of(items[-1]) == text_of(ended) != "", text_of(ended))

    stage.note("Now a stream, and the tab is closed in mid-sentence:")
    seen = demo.read_until_break(conversation, "Write a long story about space otters.")
    seen.close()
    stage.mark_break(f"tab closed at event {seen.last}")
    _claim_partial(demo, seen)
    ended = demo.wait(seen.response_id)
    stage.claim(
        f"the run continued without a reader: {ended['status']}", ended["status"] in {"completed", "incomplete"}
    )
    last = demo.items(conversation)[-1]
    whole = text_of(last)
    grown = len(whole) > len(seen.text) and whole.startswith(seen.text)
    stage.claim(f"the whole answer is in the conversation, {len(whole) - len(seen.text)} characters more", grown, whole)


def _claim_partial(demo: Demo, seen: Stream) -> None:
    """Check that everything seen can be fetched at once."""
    path = f"/v1/responses/{seen.response_id}"
    demo.stage.request("GET", path)
    now = demo.client.get(path).body
    text = text_of(now)
    held = text.startswith(seen.text)
    demo.stage.claim(f"fetched just now: {now.get('status')}, with every word that was seen", held, text)


def killed_in_mid_sentence(demo: Demo) -> None:
    """Report 3: a broken stream cannot be recovered. Here even the server is killed."""
    stage = demo.stage
    complaint = "after a disconnect GET /v1/responses/{id} is a 404, and everything generated so far is lost."
    stage.chapter(2, "kill -9 in mid-sentence, restart, resume", complaint)
    conversation = demo.new_conversation()
    seen = demo.read_until_break(conversation, "Write a long story about a lighthouse.")
    demo.server.kill()
    for event in seen:  # sent before the server was killed
        demo.show(event)
    stage.mark_break(f"kill -9 at event {seen.last}")
    seen.close()
    stage.note("Starting the server again on the same file ...")
    demo.server.start()
    _claim_partial(demo, seen)
    stage.note(f"Reading on after event {seen.last}; what is new is green:")
    rest = demo.resume(seen)
    numbers = list(range(seen.last + 1, seen.last + 1 + len(rest.events)))
    stage.claim("numbers continue without gap or repeat", rest.numbers == numbers, rest.numbers)
    _claim_continued(demo, conversation, seen, rest)


def _claim_continued(demo: Demo, conversation: str, seen: Stream, rest: Stream) -> None:
    stage = demo.stage
    ended = rest.events[-1]["response"]
    text = text_of(ended)
    stage.claim("text seen + text resumed = the answer, nothing repeated", seen.text + rest.text == text, text)
    note = ended.get("outlive") or {}
    continued = bool(rest.text) and note.get("attempts") == 2 and ended["status"] in {"completed", "incomplete"}
    stage.claim(f"it was continued, and shows where: {note}", continued, ended["status"])
    again = demo.client.stream(f"/v1/responses/{seen.response_id}?stream=true")
    replayed = [again.frames[-1] for _ in again]
    stage.claim("a replay is byte for byte what was streamed", replayed == seen.frames + rest.frames)
    items = demo.items(conversation)
    turns = [item.get("role") for item in items[-2:]]
    whole = turns == ["user", "assistant"] and text_of(items[-1]) == text
    stage.claim("the conversation is whole", whole, turns)
    body = {"model": MODEL, "conversation": conversation, "input": "Thank you.", "max_output_tokens": 16}
    status = demo.create(body)["status"]
    stage.claim("and free for the next turn", status in {"completed", "incomplete"}, status)


def nothing_stored(demo: Demo) -> None:
    """Report 2: store=false, but the messages are in the database."""
    stage = demo.stage
    complaint = "with store: false the messages are still written to the conversation in the database."
    stage.chapter(3, "store: false leaves no byte on disk", complaint)
    conversation = demo.new_conversation()
    secret, control = f"canary{secrets.token_hex(8)}", f"control{secrets.token_hex(8)}"
    body = {"model": MODEL, "conversation": conversation, "max_output_tokens": 30}
    kept = demo.create(body | {"input": f"Remember {control}."})
    before = demo.items(conversation)
    gone = demo.create(body | {"input": f"Remember {secret}.", "store": False})
    streamed = demo.client.stream("/v1/responses", body | {"input": secret, "store": False, "stream": True})
    types = [event["type"] for event in streamed]
    stage.claim("answered, plain and as a stream", bool(text_of(gone)) and types[-1] != "response.failed", types)
    found = [demo.client.get(f"/v1/responses/{name}").status for name in (gone["id"], streamed.response_id)]
    stage.claim("neither response can be fetched afterwards", found == [404, 404], found)
    stage.claim("the conversation did not change", demo.items(conversation) == before)
    there = [file.name for file in demo.server.find(control)]
    stage.claim(f"a word of the stored response {kept['id']} is on disk, in {', '.join(there)}", bool(there))
    where = [file.name for file in demo.server.find(secret)]
    count = len(demo.server.files())
    stage.claim(f"the canary is in none of {count} files (database, log, everything it holds open)", not where, where)


def no_silent_state(demo: Demo) -> None:
    """Report 4: Chat Completions ignores server-managed state without an error."""
    stage = demo.stage
    complaint = "Chat Completions accepts previous_response_id and conversation_id, and silently ignores them."
    stage.chapter(4, "Chat Completions refuses what it cannot honour", complaint)
    body: Json = {"model": MODEL, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16}
    for name, value in {"previous_response_id": "resp_123", "conversation_id": "conv_123", "store": True}.items():
        stage.request("POST", "/v1/chat/completions", {name: value} | body)
        answer = demo.client.post("/v1/chat/completions", {name: value} | body)
        error = answer.body.get("error") or {}
        refused = (answer.status, error.get("code"), error.get("param")) == (400, "unsupported_parameter", name)
        stage.claim(f"{answer.status} {error.get('code')}: {error.get('message')}", refused, answer.body)
    stage.request("POST", "/v1/chat/completions", body)
    answer = demo.client.post("/v1/chat/completions", body)
    stage.claim("without state it is a plain pass-through", answer.status == 200 and "choices" in answer.body)


def background_from_a_client(demo: Demo) -> None:
    """Report 5: submit, poll as the server advises, cancel."""
    stage = demo.stage
    complaint = "clients want background=True with adaptive polling, and a cancel that reaches the server."
    stage.chapter(5, "Submit, poll, cancel", complaint)
    body: Json = {"model": MODEL, "input": "Count from one to thirty.", "background": True, "max_output_tokens": 120}
    ended = _poll(demo, str(demo.create(body)["id"]))
    stage.claim(f"polled to its end: {ended['status']}", ended["status"] in {"completed", "incomplete"}, ended)

    long = demo.create(body | {"input": "Write a very long story.", "max_output_tokens": 1500})
    path = f"/v1/responses/{long['id']}/cancel"
    stage.request("POST", path)
    cancelled = demo.client.post(path).body
    stage.claim("cancelled at once", cancelled["status"] == "cancelled", cancelled)
    stage.claim("cancelling twice is harmless", demo.client.post(path).body == cancelled)
    answer = demo.client.post("/v1/responses", body | {"store": False})
    error = answer.body.get("error") or {}
    refused = (answer.status, error.get("param")) == (400, "store")
    stage.claim(f"background with store: false: {answer.status} {error.get('message')}", refused, answer.body)


def _poll(demo: Demo, response_id: str) -> Json:
    """Poll at the interval that the server advises while a response is not ended."""
    advised = []
    while True:
        answer = demo.client.get(f"/v1/responses/{response_id}")
        if answer.body["status"] in _TERMINAL:
            break
        advised.append(answer.headers.get("openai-poll-after-ms"))
        time.sleep(int(advised[-1] or 100) / 1000)
    demo.stage.request("GET", f"/v1/responses/{response_id}   (x {len(advised) + 1})")
    delays = ", ".join(f"{delay} ms" for delay in advised[:6])
    demo.stage.claim(f"the server advised when to poll again: {delays}", bool(advised) and None not in advised, advised)
    return answer.body


CHAPTERS = (
    background_and_closed_tab,
    killed_in_mid_sentence,
    nothing_stored,
    no_silent_state,
    background_from_a_client,
)

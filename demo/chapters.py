"""The five reports, one function each: what its author did, and what happens here."""

from __future__ import annotations

import secrets
import time

from demo.client import Client, Json, Stream, is_text, text_of
from demo.server import Server
from demo.stage import Stage

MODEL = "gpt-4o"  # as in the reports; the embedded model answers to any name
_DELTAS_BEFORE_THE_CUT = 40
_TRIES = 3
_TERMINAL = {"completed", "incomplete", "failed", "cancelled"}


class Play:
    """The server, the client, the stage, and the moves that several chapters make."""

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
        """The response once it has ended; the server holds the GET until then."""
        path = f"/v1/responses/{response_id}?wait=60"
        self.stage.request("GET", path)
        return self.client.get(path).body

    def items(self, conversation: str) -> list[Json]:
        path = f"/v1/conversations/{conversation}/items?order=asc&limit=100"
        self.stage.request("GET", path)
        data: list[Json] = self.client.get(path).body["data"]
        return data

    def watch_until_cut(self, conversation: str, question: str) -> Stream:
        """A stream in mid-answer. A small model may have little to say; then it is asked once more."""
        for _ in range(_TRIES):
            body = {"model": MODEL, "conversation": conversation, "input": question, "stream": True, "store": True}
            body["max_output_tokens"] = 200
            self.stage.request("POST", "/v1/responses", body)
            stream = self.client.stream("/v1/responses", body)
            for event in stream:
                self.show(event)
                if sum(map(is_text, stream.events)) >= _DELTAS_BEFORE_THE_CUT:
                    return stream
            self.stage.tell("That was a short answer; asking again.")
        raise RuntimeError("The model never had enough to say to be interrupted.")

    def show(self, event: Json, style: str = "white") -> None:
        if is_text(event):
            self.stage.speak(event["delta"], style)

    def resume(self, seen: Stream) -> Stream:
        """Read on from the number last seen, to the end."""
        path = f"/v1/responses/{seen.response_id}?stream=true&starting_after={seen.last}"
        self.stage.request("GET", path)
        stream = self.client.stream(path)
        self.stage.speak("... " + seen.text[-60:].replace("\n", " "), "dim")
        for event in stream:
            self.show(event, "green")
        self.stage.speak("\n")
        return stream


def background_and_closed_tab(play: Play) -> None:
    """Report 1: background runs forget their conversation, and a closed tab ends the answer."""
    stage = play.stage
    complaint = "a background response never shows up in its conversation, and a closed tab ends the answer for good."
    stage.chapter(1, "The conversation is whole, and a closed tab changes nothing", complaint)
    conversation = play.new_conversation()
    body = {"model": MODEL, "conversation": conversation, "input": "Who are you?", "background": True}
    begun = play.create(body | {"max_output_tokens": 60})
    stage.claim(f"accepted at once, {begun['status']}: {begun['id']}", begun["status"] in {"queued", "in_progress"})
    ended = play.wait(begun["id"])
    items = play.items(conversation)
    roles = [item.get("role") for item in items]
    stage.claim("question and answer are in the conversation", roles == ["user", "assistant"], roles)
    stage.claim("the answer is the response's own", text_of(items[-1]) == text_of(ended) != "", text_of(ended))

    stage.tell("Now a stream, and the tab is closed in mid-sentence:")
    seen = play.watch_until_cut(conversation, "Write a long story about space otters.")
    seen.close()
    stage.cut(f"tab closed at event {seen.last}")
    _claim_partial(play, seen)
    ended = play.wait(seen.response_id)
    stage.claim(f"the run went on without a reader: {ended['status']}", ended["status"] in {"completed", "incomplete"})
    last = play.items(conversation)[-1]
    whole = text_of(last)
    grown = len(whole) > len(seen.text) and whole.startswith(seen.text)
    stage.claim(f"the whole answer is in the conversation, {len(whole) - len(seen.text)} characters more", grown, whole)


def _claim_partial(play: Play, seen: Stream) -> None:
    """Whatever was seen is there to be fetched, at once."""
    path = f"/v1/responses/{seen.response_id}"
    play.stage.request("GET", path)
    now = play.client.get(path).body
    text = text_of(now)
    held = text.startswith(seen.text)
    play.stage.claim(f"fetched just now: {now.get('status')}, with every word that was seen", held, text)


def killed_in_mid_sentence(play: Play) -> None:
    """Report 3: a broken stream cannot be recovered. Here even the server is gone."""
    stage = play.stage
    complaint = "after a disconnect GET /v1/responses/{id} is a 404, and everything generated so far is lost."
    stage.chapter(2, "kill -9 in mid-sentence, restart, resume", complaint)
    conversation = play.new_conversation()
    seen = play.watch_until_cut(conversation, "Write a long story about a lighthouse.")
    play.server.kill()
    for event in seen:  # what had left the server before it died
        play.show(event)
    stage.cut(f"kill -9 at event {seen.last}")
    seen.close()
    stage.tell("Starting the server again on the same file ...")
    play.server.start()
    _claim_partial(play, seen)
    stage.tell(f"Reading on after event {seen.last}; what is new is green:")
    rest = play.resume(seen)
    numbers = list(range(seen.last + 1, seen.last + 1 + len(rest.events)))
    stage.claim("numbers go on without gap or repeat", rest.numbers == numbers, rest.numbers)
    _claim_continued(play, conversation, seen, rest)


def _claim_continued(play: Play, conversation: str, seen: Stream, rest: Stream) -> None:
    stage = play.stage
    ended = rest.events[-1]["response"]
    text = text_of(ended)
    stage.claim("text seen + text resumed = the answer, nothing repeated", seen.text + rest.text == text, text)
    note = ended.get("outlive") or {}
    continued = bool(rest.text) and note.get("attempts") == 2 and ended["status"] in {"completed", "incomplete"}
    stage.claim(f"it was continued, and says where: {note}", continued, ended["status"])
    again = play.client.stream(f"/v1/responses/{seen.response_id}?stream=true")
    replayed = [again.frames[-1] for _ in again]
    stage.claim("a replay is byte for byte what was streamed", replayed == seen.frames + rest.frames)
    items = play.items(conversation)
    turns = [item.get("role") for item in items[-2:]]
    whole = turns == ["user", "assistant"] and text_of(items[-1]) == text
    stage.claim("the conversation is whole", whole, turns)
    body = {"model": MODEL, "conversation": conversation, "input": "Thank you.", "max_output_tokens": 16}
    status = play.create(body)["status"]
    stage.claim("and free for the next turn", status in {"completed", "incomplete"}, status)


def nothing_stored(play: Play) -> None:
    """Report 2: store=false, and yet the messages are in the database."""
    stage = play.stage
    complaint = "with store: false the messages are still written to the conversation in the database."
    stage.chapter(3, "store: false leaves no byte on disk", complaint)
    conversation = play.new_conversation()
    secret, control = f"canary{secrets.token_hex(8)}", f"control{secrets.token_hex(8)}"
    body = {"model": MODEL, "conversation": conversation, "max_output_tokens": 30}
    kept = play.create(body | {"input": f"Remember {control}."})
    before = play.items(conversation)
    gone = play.create(body | {"input": f"Remember {secret}.", "store": False})
    streamed = play.client.stream("/v1/responses", body | {"input": secret, "store": False, "stream": True})
    types = [event["type"] for event in streamed]
    stage.claim("answered, plain and as a stream", bool(text_of(gone)) and types[-1] != "response.failed", types)
    found = [play.client.get(f"/v1/responses/{name}").status for name in (gone["id"], streamed.response_id)]
    stage.claim("neither response can be fetched afterwards", found == [404, 404], found)
    stage.claim("the conversation did not change", play.items(conversation) == before)
    there = [file.name for file in play.server.find(control)]
    stage.claim(f"a word of the stored response {kept['id']} is on disk, in {', '.join(there)}", bool(there))
    where = [file.name for file in play.server.find(secret)]
    count = len(play.server.files())
    stage.claim(f"the canary is in none of {count} files (database, log, everything it holds open)", not where, where)


def no_silent_state(play: Play) -> None:
    """Report 4: Chat Completions swallows server-managed state without a word."""
    stage = play.stage
    complaint = "Chat Completions accepts previous_response_id and conversation_id, and silently ignores them."
    stage.chapter(4, "Chat Completions refuses what it cannot honour", complaint)
    body: Json = {"model": MODEL, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16}
    for name, value in {"previous_response_id": "resp_123", "conversation_id": "conv_123", "store": True}.items():
        stage.request("POST", "/v1/chat/completions", {name: value} | body)
        answer = play.client.post("/v1/chat/completions", {name: value} | body)
        error = answer.body.get("error") or {}
        refused = (answer.status, error.get("code"), error.get("param")) == (400, "unsupported_parameter", name)
        stage.claim(f"{answer.status} {error.get('code')}: {error.get('message')}", refused, answer.body)
    stage.request("POST", "/v1/chat/completions", body)
    answer = play.client.post("/v1/chat/completions", body)
    stage.claim("without state it is a plain pass-through", answer.status == 200 and "choices" in answer.body)


def background_from_a_client(play: Play) -> None:
    """Report 5: submit, poll as the server advises, cancel."""
    stage = play.stage
    complaint = "clients want background=True with adaptive polling, and a cancel that reaches the server."
    stage.chapter(5, "Submit, poll, cancel", complaint)
    body: Json = {"model": MODEL, "input": "Count from one to thirty.", "background": True, "max_output_tokens": 120}
    ended = _poll(play, str(play.create(body)["id"]))
    stage.claim(f"polled to its end: {ended['status']}", ended["status"] in {"completed", "incomplete"}, ended)

    long = play.create(body | {"input": "Write a very long story.", "max_output_tokens": 1500})
    path = f"/v1/responses/{long['id']}/cancel"
    stage.request("POST", path)
    cancelled = play.client.post(path).body
    stage.claim("cancelled at once", cancelled["status"] == "cancelled", cancelled)
    stage.claim("cancelling twice is harmless", play.client.post(path).body == cancelled)
    answer = play.client.post("/v1/responses", body | {"store": False})
    error = answer.body.get("error") or {}
    refused = (answer.status, error.get("param")) == (400, "store")
    stage.claim(f"background with store: false: {answer.status} {error.get('message')}", refused, answer.body)


def _poll(play: Play, response_id: str) -> Json:
    """Poll as often as the server advises, which it does while there is something to wait for."""
    advised = []
    while True:
        answer = play.client.get(f"/v1/responses/{response_id}")
        if answer.body["status"] in _TERMINAL:
            break
        advised.append(answer.headers.get("openai-poll-after-ms"))
        time.sleep(int(advised[-1] or 100) / 1000)
    play.stage.request("GET", f"/v1/responses/{response_id}   (x {len(advised) + 1})")
    told = ", ".join(f"{pause} ms" for pause in advised[:6])
    play.stage.claim(f"the server said when to come again: {told}", bool(advised) and None not in advised, advised)
    return answer.body


CHAPTERS = (
    background_and_closed_tab,
    killed_in_mid_sentence,
    nothing_stored,
    no_silent_state,
    background_from_a_client,
)

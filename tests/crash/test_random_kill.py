"""kill -9 or SIGTERM at random moments under mixed load; then every response and every frame seen is checked."""

from __future__ import annotations

import random
import threading
import time
from http.client import HTTPException
from pathlib import Path

from tests.crash.conftest import MakeServer
from tests.support.checks import check_conversation, check_ended, check_file
from tests.support.http_client import EventStream, HttpClient, Json, text_of
from tests.support.scripts import stream_words, words
from tests.support.upstream import FakeUpstream
from tests.support.waiting import wait_until

KILLS = 6
WORKERS = 6
CONFIG = """
[upstreams.can]
url = "{url}"
continuation = "prefill"
default = true

[upstreams.cannot]
url = "{url}"
"""

ConnectionErrors = (OSError, HTTPException)


class LoadThread(threading.Thread):
    """Creates responses in all modes, one after the other, in a conversation of its own, and reconnects when cut."""

    def __init__(self, client: HttpClient, models: dict[str, str], seed: str) -> None:
        super().__init__(daemon=True)
        self.client = client
        self.models = models
        self.choose = random.Random(seed)
        self.seen: dict[str, list[bytes]] = {}
        self.conversation = client.create_conversation()
        self.stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                try:
                    self.take_turn()
                except ConnectionErrors:
                    self.wait_ready()
        except BaseException as error:
            self.error = error

    def take_turn(self) -> None:
        model = self.choose.choice(list(self.models))
        where = self.choose.choice([{"conversation": self.conversation}, self.chain(), {}])
        kind = self.choose.choice(["stream", "stream", "background", "background stream", "plain", "cancel"])
        if kind == "plain":
            self.client.create(model, **where)
        elif kind in ("background", "cancel"):
            answer = self.client.create(model, background=True, **where)
            if answer.status == 200:
                self.seen[answer.json()["id"]] = []
                if kind == "cancel":
                    self.client.cancel(answer.json()["id"])
        else:
            self.read_stream(self.client.stream(model, background=kind != "stream", **where))

    def chain(self) -> dict[str, str]:
        return {"previous_response_id": self.choose.choice(list(self.seen))} if self.seen else {}

    def read_stream(self, stream: EventStream) -> None:
        """Read to the end, over as many connections as it takes."""
        if stream.status != 200:
            stream.close()
            return
        stream.read_all()
        frames = stream.frames
        if not frames:
            return
        response_id = stream.id
        self.seen[response_id] = frames
        while not stream.complete:
            try:
                stream = self.client.follow(response_id, after=len(frames) - 1).read_all()
                frames += stream.frames
            except ConnectionErrors:
                self.wait_ready()

    def wait_ready(self) -> None:
        wait_until(lambda: self.client.ready_status() == 200, "the server is back")


def test_kills_at_random_moments_leave_every_response_complete(
    upstream: FakeUpstream, make_server: MakeServer, tmp_path: Path
) -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    choose = random.Random(seed)
    config = tmp_path / "two.toml"
    config.write_text(CONFIG.format(url=upstream.url))
    server = make_server("--config", str(config), "--grace-seconds", "0.1")
    server.upstream = None
    server.start()
    client = server.client
    answers = {
        upstream.model(stream_words(pieces, pause=0.003)): "".join(pieces) for pieces in map(words, (1, 10, 40, 80))
    }
    models = {f"{name}/{model}": text for model, text in answers.items() for name in ("can", "cannot")}
    workers = [LoadThread(client, models, f"{seed}-{n}") for n in range(WORKERS)]
    for worker in workers:
        worker.start()
    for _ in range(KILLS):
        time.sleep(choose.uniform(0.1, 0.9))
        if choose.random() < 0.3:
            assert server.terminate() == 0
        server.restart()
    for worker in workers:
        worker.stopping.set()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive() and worker.error is None, worker.error

    seen = {response_id: frames for worker in workers for response_id, frames in worker.seen.items()}
    listed = client.list_all("/v1/responses")
    assert set(seen) <= {body["id"] for body in listed}
    ended = [check_one(client, body, seen.get(body["id"], []), models) for body in listed]
    resumed = [body for body in ended if body.get("outlive", {}).get("resumed_at")]
    print(f"{len(ended)} responses, {len(resumed)} of them resumed")
    assert resumed, "no response was interrupted"
    for worker in workers:
        own = [body for body in ended if (body.get("conversation") or {}).get("id") == worker.conversation]
        check_conversation(client, worker.conversation, own)
    server.kill()
    check_file(server.database)


def check_one(client: HttpClient, listed: Json, seen: list[bytes], models: dict[str, str]) -> Json:
    body = check_ended(client, listed["id"], seen)
    text = text_of(body)
    # The object has the upstream's name of the model and not the request's, so that any answer may match.
    answers = [answer for answer in models.values() if answer.startswith(text)]
    assert answers, text
    if body["status"] == "completed":
        assert text in answers
    elif body["status"] == "incomplete":
        assert body["incomplete_details"]["reason"] == "interrupted"
        assert "cut off" in body["incomplete_details"]["message"]
    else:
        assert body["status"] == "cancelled", body
    assert len(body["output"]) <= 1
    return body

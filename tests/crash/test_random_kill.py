"""kill -9, or SIGTERM, at random moments under mixed load; then every response and every frame seen is checked."""

from __future__ import annotations

import random
import threading
import time
from http.client import HTTPException
from pathlib import Path

from tests.crash.conftest import Serve
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

Broken = (OSError, HTTPException)


class Worker(threading.Thread):
    """Makes responses of all kinds, one after the other, in a conversation of its own, and reconnects when cut."""

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
                except Broken:
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
                    self.client.post(f"/v1/responses/{answer.json()['id']}/cancel")
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
            except Broken:
                self.wait_ready()

    def wait_ready(self) -> None:
        wait_until(lambda: self.client.ready_status() == 200, "the server is back")


def test_whatever_the_moment_of_the_kill_every_response_ends_whole(
    upstream: FakeUpstream, make_server: Serve, tmp_path: Path
) -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    choose = random.Random(seed)
    config = tmp_path / "two.toml"
    config.write_text(CONFIG.format(url=upstream.url))
    server = make_server("--config", str(config), "--grace-seconds", "0.1")
    server.upstream = None
    server.start()
    client = HttpClient(server.port)
    stories = {
        upstream.model(stream_words(story, pause=0.003)): "".join(story) for story in map(words, (1, 10, 40, 80))
    }
    models = {f"{name}/{model}": story for model, story in stories.items() for name in ("can", "cannot")}
    workers = [Worker(client, models, f"{seed}-{n}") for n in range(WORKERS)]
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
    listed = list_all(client)
    assert set(seen) <= {body["id"] for body in listed}
    ended = [check_one(client, body, seen.get(body["id"], []), models) for body in listed]
    print(f"{len(ended)} responses, {sum('outlive' in body for body in ended)} of them in several attempts")
    assert any(body["outlive"]["resumed_at"] for body in ended if "outlive" in body), "none was cut: no test at all"
    for worker in workers:
        own = [body for body in ended if (body.get("conversation") or {}).get("id") == worker.conversation]
        check_conversation(client, worker.conversation, own)
    server.kill()
    check_file(server.database)


def list_all(client: HttpClient) -> list[Json]:
    """Oldest first."""
    found: list[Json] = []
    query = "order=asc&limit=100"
    while True:
        page = client.get(f"/v1/responses?{query}").json()
        found += page["data"]
        if not page["has_more"]:
            return found
        query = f"order=asc&limit=100&after={page['last_id']}"


def check_one(client: HttpClient, listed: Json, seen: list[bytes], models: dict[str, str]) -> Json:
    body = check_ended(client, listed["id"], seen)
    told = text_of(body)
    # The object names the model that answered; the request's own is not told, so any story may fit.
    stories = [story for story in models.values() if story.startswith(told)]
    assert stories, told
    if body["status"] == "completed":
        assert told in stories
    elif body["status"] == "incomplete":
        assert body["incomplete_details"]["reason"] == "interrupted"
        assert "cut off" in body["incomplete_details"]["message"]
    else:
        assert body["status"] == "cancelled", body
    assert len(body["output"]) <= 1
    return body

"""A server behind a real nginx and a real Caddy, over TLS, with the configurations of deploy/."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest
from openai import OpenAI
from openai.types.responses import ResponseStreamEvent
from websockets.sync.client import ClientConnection, connect

from outlive.client import RetryPolicy, StreamStats, stream
from tests.deploy.conftest import Behind
from tests.deploy.reverse_proxies import ReverseProxy
from tests.support.http_client import text_of
from tests.support.upstream import FakeUpstream, Gate, Pause, Step, ending, say, text
from tests.support.waiting import Stopwatch, wait_until
from tests.wire.websocket import TIMEOUT, WebSocketClient

# Longer than the proxies of the tests wait for a byte.
SILENCE = 1.8
PROXY_WAITS = {
    "nginx": {"proxy_read_timeout 1h": "proxy_read_timeout 1s"},
    "caddy": {"flush_interval -1": "flush_interval -1\n\t\ttransport http {\n\t\t\tread_timeout 1s\n\t\t}"},
}


def test_events_pass_one_by_one_and_large_requests_pass(behind: Behind, upstream: FakeUpstream) -> None:
    gates = [Gate() for _ in range(3)]
    steps: list[Step] = []
    for n, gate in enumerate(gates):
        steps += [text(f"piece {n}. "), gate]
    model = upstream.model([*steps, *ending()])
    client = behind().client()
    with client.stream(model, instructions="x" * 2_000_000, service_tier="default") as events:
        for n, gate in enumerate(gates):
            events.read_delta(f"piece {n}. ")  # it is here, though the next one is not even made
            gate.open()
        assert events.read_all().complete


def test_a_silent_stream_survives_where_a_silent_plain_request_does_not(
    behind: Behind, kind: str, upstream: FakeUpstream
) -> None:
    model = upstream.model(lambda _: [text("a"), Pause(SILENCE), text("b"), *ending()])
    client = behind("--keep-alive-seconds", "0.3", changes=PROXY_WAITS[kind]).client()
    streamed = client.stream(model).read_all()
    assert streamed.complete and text_of(streamed.events[-1]["response"]) == "ab"
    plain = client.create(model, metadata={"name": "plain"})
    assert plain.status in (502, 504)
    (response_id,) = client.find_named("plain")
    wait_until(lambda: client.retrieve(response_id)["status"] == "completed", "only the connection was cut")


def sdk(proxy: ReverseProxy) -> OpenAI:
    return OpenAI(base_url=proxy.base_url, api_key="any", http_client=httpx2.Client(verify=proxy.context))


def test_a_reload_of_the_proxy_loses_nothing_with_the_client_library(behind: Behind, upstream: FakeUpstream) -> None:
    gate, stats = Gate(), StreamStats()
    proxy = behind()
    policy = RetryPolicy(first_delay=0.01, longest_delay=0.1)
    with sdk(proxy) as client:
        model = upstream.model([text("before "), gate, text("after"), *ending()])
        events = stream(client, model=model, input="Hi", retry_policy=policy, stats=stats)
        got: list[ResponseStreamEvent] = []
        for event in events:
            got.append(event)
            if event.type == "response.output_text.delta":
                break
        with proxy.client().follow(str(stats.response_id)) as witness:
            witness.read_delta("before ")
            proxy.reload()
            witness.read_all()
            assert witness.cut  # so the proxy has cut the other stream, too
        gate.open()
        got += events
    assert [event.sequence_number for event in got] == list(range(len(got)))
    assert "".join(event.delta for event in got if event.type == "response.output_text.delta") == "before after"
    assert got[-1].type == "response.completed"
    assert stats.faults + stats.resumes > 0


@contextmanager
def open_websocket(proxy: ReverseProxy) -> Iterator[WebSocketClient]:
    url = proxy.base_url.replace("https", "wss") + "/responses"
    # This client reads and writes in two threads: not safe before Python 3.13 while a ticket of TLS 1.3 comes in.
    context = ssl.create_default_context(cafile=str(proxy.folder / "tls.crt"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    connection: ClientConnection = connect(url, ssl=context, open_timeout=TIMEOUT, proxy=None)
    with connection:
        yield WebSocketClient(connection)


def test_websockets_pass(behind: Behind, upstream: FakeUpstream) -> None:
    with open_websocket(behind()) as client:
        first = client.answer(model=upstream.model(say("one")), input="Hi")
        second = client.answer(model=upstream.model(say("two")), input="Hi", previous_response_id=first["id"])
        assert (text_of(first), text_of(second)) == ("one", "two")


def test_clients_behind_a_trusted_proxy_are_told_apart_by_their_addresses(behind: Behind) -> None:
    proxy = behind("--trusted-proxy", "127.0.0.1", "--api-key", "alice=a-key-of-32-characters-1234567")

    def seconds(source: str, **headers: str) -> float:
        watch = Stopwatch()
        answer = proxy.client(source, key="wrong").get("/v1/models", **headers)
        assert answer.status == 401, answer
        return watch.seconds

    # After five wrong keys from one address, each one more doubles the time until its answer, from 0.1 s on.
    for n in range(8):
        seconds("127.0.0.9", x_forwarded_for=f"203.0.113.{n}")  # which an address of the client's own invention
    slow = seconds("127.0.0.9", x_forwarded_for="127.0.0.1")  # does not change
    assert slow > 0.7
    assert min(seconds(f"127.0.0.{n}") for n in range(20, 23)) < 0.7


ROOT = "/outlive"
BELOW = {
    ("nginx", "passed on"): {"location / {": f"location {ROOT}/ {{"},
    ("nginx", "stripped"): {
        "location / {": f"location {ROOT}/ {{",
        "proxy_pass http://outlive;": "proxy_pass http://outlive/;",
    },
    ("caddy", "passed on"): {"reverse_proxy ": f"reverse_proxy {ROOT}/* "},
    ("caddy", "stripped"): {"reverse_proxy ": f"uri strip_prefix {ROOT}\n\treverse_proxy "},
}


@pytest.mark.parametrize("prefix", ["passed on", "stripped"])
def test_a_server_below_a_path_answers(behind: Behind, kind: str, prefix: str, upstream: FakeUpstream) -> None:
    proxy = behind("--root-path", ROOT, changes=BELOW[kind, prefix], root=ROOT)
    model = upstream.model(say("one"))
    with sdk(proxy) as client:
        answered = client.responses.create(model=model, input="Hi")
        assert answered.output_text == client.responses.retrieve(answered.id).output_text == "one"
    with open_websocket(proxy) as connection:
        connection.answer(model=model, input="Hi")
    assert proxy.client().get(f"{ROOT}/openapi.json").json()["servers"] == [{"url": ROOT}]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl: apt-get install curl")
def test_streams_pass_over_http_2(behind: Behind, upstream: FakeUpstream) -> None:
    gate = Gate()
    proxy = behind()
    model = upstream.model([text("early"), gate, text("late"), *ending()])
    response_id = proxy.client().submit(model)
    command = ["curl", "--no-buffer", "--silent", "--http2", "--cacert", f"{proxy.folder}/tls.crt", "--max-time", "60"]
    url = f"{proxy.base_url}/responses/{response_id}?stream=true"
    with subprocess.Popen([*command, "--write-out", "HTTP/%{http_version}", url], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        while b"early" not in reader.stdout.readline():
            pass
        gate.open()
        rest = reader.stdout.read()
    assert b"late" in rest and rest.endswith(b"data: [DONE]\n\nHTTP/2")

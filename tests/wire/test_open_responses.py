"""The assertions of the Open Responses compliance tests, with both sets of event names and two dialects."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import anthropic_upstream as claude_says
from tests.support.anthropic_upstream import AnthropicUpstream
from tests.support.http_client import HttpClient
from tests.support.open_responses import check_response, check_stream
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Refuse, Step, call, ending, reasoning, refusal, say, text
from tests.wire.conftest import Servers
from tests.wire.events import DONE, read, split, types

Json = dict[str, Any]

WEATHER: Json = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
IMAGE = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
PDF = "data:application/pdf;base64," + base64.b64encode(b"%PDF-1.4").decode()


def message(role: str, content: Any) -> Json:
    return {"type": "message", "role": role, "content": content}


class Model:
    """A scripted model behind either upstream."""

    def __init__(
        self, upstream: FakeUpstream, http: HttpClient, speak: Callable[..., list[Step]], call: list[Step]
    ) -> None:
        self.upstream, self.http = upstream, http
        self.speak, self.calling = speak, call

    def create(self, name: str, **body: Any) -> Json:
        answer = self.http.create(model=name, stream=False, **body)
        assert answer.status == 200, answer.body
        response: Json = answer.json()
        check_response(response)
        return response

    def stream(self, name: str, **body: Any) -> list[Json]:
        opened = self.http.stream(model=name, **body)
        assert opened.headers["content-type"].startswith("text/event-stream")
        raw = opened.read_rest()
        assert raw.endswith(DONE)
        events = [read(frame) for frame in split(raw)]
        check_stream(events)
        check_response(events[-1]["response"])
        return events


@pytest.fixture(params=["openai", "open-responses"])
def names(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def claude(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AnthropicUpstream, OutliveServer]]:
    folder: Path = tmp_path_factory.mktemp("claude")
    with AnthropicUpstream() as upstream:
        file = folder / "outlive.toml"
        file.write_text(f'[upstreams.a]\nurl = "{upstream.url}"\ndialect = "anthropic"\ndeveloper_role = false\n')
        with OutliveServer(folder, None, "--config", str(file), "--event-names", "open-responses") as server:
            yield upstream, server


@pytest.fixture(params=["chat, openai", "chat, open-responses", "anthropic"])
def model(
    request: pytest.FixtureRequest,
    servers: Servers,
    upstream: FakeUpstream,
    claude: tuple[AnthropicUpstream, OutliveServer],
) -> Iterator[Model]:
    if request.param == "anthropic":
        with HttpClient(claude[1].port) as http:
            use = claude_says.use(0, "toolu_1", "get_weather", '{"location"', ':"X"}')
            calling = [claude_says.start(), *use, *claude_says.end("tool_use")]
            yield Model(claude[0], http, claude_says.say, calling)
        return
    flags = ("--event-names", "open-responses") if "open-responses" in request.param else ()
    with HttpClient(servers(*flags).port) as http:
        pieces = [call(0, "", "call_1", "get_weather"), call(0, '{"location"'), call(0, ':"X"}')]
        yield Model(upstream, http, say, [*pieces, *ending("tool_calls")])


# -- the cases of the compliance tests


def test_basic_response(model: Model) -> None:
    name = model.upstream.model(model.speak("Hello there, friend."))
    response = model.create(name, input=[message("user", "Say hello in exactly 3 words.")])
    assert response["status"] == "completed" and response["output"]
    assert response["completed_at"] >= response["created_at"]


def test_streaming_response(model: Model) -> None:
    name = model.upstream.model(model.speak("1, 2", ", 3"))
    events = model.stream(name, input=[message("user", "Count from 1 to 3.")])
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["status"] == "completed"


def test_system_prompt(model: Model) -> None:
    name = model.upstream.model(model.speak("Arr."))
    given = [message("system", "You are a pirate."), message("user", "Say hello.")]
    assert model.create(name, input=given)["status"] == "completed"


def test_tool_calling(model: Model) -> None:
    name = model.upstream.model(model.calling)
    choice = {"type": "function", "name": "get_weather"}
    response = model.create(name, input="How is it?", tools=[WEATHER], tool_choice=choice)
    (item,) = response["output"]
    assert item["type"] == "function_call" and json.loads(item["arguments"]) == {"location": "X"}


def test_tool_calling_streaming(model: Model) -> None:
    events = model.stream(model.upstream.model(model.calling), input="How is it?", tools=[WEATHER])
    seen = types(events)
    assert {"function_call_arguments.delta", "function_call_arguments.done"} <= set(seen)
    for name in ("response.output_item.added", "response.output_item.done"):
        assert [event["item"]["type"] for event in events if event["type"] == name] == ["function_call"]


def test_function_call_roundtrip(model: Model) -> None:
    name = model.upstream.model(model.calling, model.speak("Sunny."))
    first = model.create(name, input="How is it?", tools=[WEATHER])
    (item,) = first["output"]
    result = {"type": "function_call_output", "call_id": item["call_id"], "output": "25 degrees"}
    second = model.create(name, input=[message("user", "How is it?"), item, result], tools=[WEATHER])
    assert second["output"][0]["content"][0]["text"] == "Sunny."


def test_image_input(model: Model) -> None:
    parts = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": IMAGE}]
    name = model.upstream.model(model.speak("A heart."))
    assert model.create(name, input=[message("user", parts)])["status"] == "completed"


def test_file_input(model: Model) -> None:
    part = {"type": "input_file", "filename": "a.pdf", "file_data": PDF}
    name = model.upstream.model(model.speak("A page."))
    given = [message("user", [part, {"type": "input_text", "text": "What is it?"}])]
    assert model.create(name, input=given)["status"] == "completed"


def test_multi_turn(model: Model) -> None:
    turns = [message("user", "I am Alice."), message("assistant", "Hello Alice!"), message("user", "Who am I?")]
    assert model.create(model.upstream.model(model.speak("Alice.")), input=turns)["status"] == "completed"


def test_previous_response_id(model: Model) -> None:
    name = model.upstream.model(model.speak("Hello Alice!"), model.speak("Alice."))
    first = model.create(name, input="I am Alice.")
    second = model.create(name, input="Who am I?", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    sent = json.dumps(model.upstream.calls(name)[1].body)
    assert sent.index("I am Alice.") < sent.index("Hello Alice!") < sent.index("Who am I?")


# -- further rules of the specification


@pytest.mark.parametrize(
    ("flags", "delta", "done"),
    [
        ((), "reasoning_text.delta", "reasoning_text.done"),
        (("--event-names", "open-responses"), "reasoning.delta", "reasoning.done"),
    ],
)
def test_reasoning_events_have_the_names_of_the_setting(
    servers: Servers, upstream: FakeUpstream, flags: tuple[str, ...], delta: str, done: str
) -> None:
    name = upstream.model([reasoning("H"), reasoning("m."), *say("Yes.")])
    with HttpClient(servers(*flags).port) as http:
        raw = http.stream(model=name, input="Think.").read_rest()
        events = [read(frame) for frame in split(raw)]
        assert [kind for kind in types(events) if kind.startswith("reasoning")] == [delta, delta, done]
        assert http.follow(events[0]["response"]["id"]).read_rest() == raw
        if flags:
            check_stream(events)


def test_a_response_keeps_the_event_names_of_its_creation(upstream: FakeUpstream, tmp_path: Path) -> None:
    name = upstream.model([reasoning("Hm."), text("Yes"), HANG], say("Again."))
    server = OutliveServer(tmp_path, upstream.url, "--event-names", "open-responses")
    with server, HttpClient(server.port) as http:
        frames = http.stream(model=name, input="Think.", background=True).read_through("response.output_text.delta")
        response_id = read(frames[0])["response"]["id"]
        server.kill()
        server.flags = []
        server.start()
        raw = http.follow(response_id).read_rest()
        events = [read(frame) for frame in split(raw)]
    check_stream(events)
    assert raw.startswith(b"".join(frames))
    assert "reasoning.done" in types(events) and events[-1]["type"] == "response.incomplete"


def test_interrupted_reasoning_is_closed_under_the_same_names(servers: Servers, upstream: FakeUpstream) -> None:
    name = upstream.model([reasoning("Hm."), HANG])
    with HttpClient(servers("--event-names", "open-responses").port) as http:
        stream = http.stream(model=name, input="Think.")
        frames = stream.read_through("response.reasoning.delta")
        http.post(f"/v1/responses/{read(frames[0])['response']['id']}/cancel")
        events = [read(frame) for frame in split(b"".join(frames) + stream.read_rest())]
    check_stream(events[:-1])
    assert types(events)[-5:] == [
        "reasoning.delta",
        "reasoning.done",
        "content_part.done",
        "output_item.done",
        "cancelled",
    ]


def test_refusals_failures_and_incomplete_answers_match_the_schemas(servers: Servers, upstream: FakeUpstream) -> None:
    with HttpClient(servers("--event-names", "open-responses").port) as http:
        for script, last in (
            ([refusal("No."), *ending()], "completed"),
            ([text("Well"), *ending("length")], "incomplete"),
            ([Refuse(400)], "failed"),
        ):
            raw = http.stream(model=upstream.model(script), input="Hi").read_rest()
            events = [read(frame) for frame in split(raw)]
            check_stream(events)
            assert types(events)[-1] == last


def test_background_and_queued_responses_match_the_schemas(
    servers: Servers, upstream: FakeUpstream, names: str
) -> None:
    flags = ("--event-names", names) if names != "openai" else ()
    with HttpClient(servers(*flags).port) as http:
        raw = http.stream(model=upstream.model(say("Hi")), input="Hi", background=True).read_rest()
        events = [read(frame) for frame in split(raw)]
        check_stream(events)
        assert types(events)[:3] == ["created", "queued", "in_progress"]
        check_response(http.get(f"/v1/responses/{events[0]['response']['id']}").json())


def test_log_probabilities_match_the_schemas(servers: Servers, upstream: FakeUpstream) -> None:
    entry = {"token": "Hi", "logprob": -0.5, "bytes": None, "top_logprobs": [{"token": "Ho", "logprob": -0.9}]}
    piece = text("Hi")
    piece["choices"][0]["logprobs"] = {"content": [entry]}
    with HttpClient(servers().port) as http:
        raw = http.stream(model=upstream.model([piece, *ending()]), input="Hi", top_logprobs=1).read_rest()
        check_stream([read(frame) for frame in split(raw)])


def test_errors_before_a_stream_have_the_envelope(servers: Servers) -> None:
    with HttpClient(servers().port) as http:
        answer = http.create(model="m", input="Hi", max_output_tokens=1)
        assert (answer.status, answer.error["param"]) == (400, "max_output_tokens")

"""Background mode: calls are submitted once and polled to their end; each status has its error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import Agent, ModelBehaviorError, ModelSettings, Runner, UserError, retry_policies
from agents.retry import ModelRetrySettings, RetryDecision
from openai import APIStatusError
from openai.types.shared import Reasoning

from outlive import client as plain
from outlive.agents import (
    DurableProvider,
    DurableResponsesModel,
    PollTimeout,
    ResponseCancelled,
    ResponseFailed,
    ResponseIncomplete,
    RetryPolicy,
)
from tests.agents.harness import connect, durable, list_responses, make_agent, wait_status
from tests.client.stub import Reply, Stub, refuse, response
from tests.support.proxy import DropAnswer, Proxy
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, finish, say, text, usage

MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
}  # fmt: skip
USAGE = {
    "input_tokens": 1, "output_tokens": 2, "total_tokens": 3,
    "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
}  # fmt: skip
COMPLETED = response("completed", output=[MESSAGE], usage=USAGE)


def ask(base_url: str, agent: Agent[Any], **provider: Any) -> Any:
    async def run() -> Any:
        async with connect(base_url) as client:
            return await Runner.run(agent, "Hello", run_config=durable(client, **provider))

    return asyncio.run(run())


class RecordedSleeps:
    """A retry policy whose sleeps take no time and are recorded."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.retry_policy = RetryPolicy(sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


# -- endings


def test_response_that_is_terminal_at_once_is_not_polled(stub: Stub) -> None:
    stub.script(Reply(COMPLETED))
    assert ask(stub.base_url, make_agent("m")).final_output == "Done."
    assert stub.requests == ["POST /responses"]


def test_response_is_polled_until_it_completes(stub: Stub) -> None:
    sleeps = RecordedSleeps()
    stub.script(Reply(response("queued")), *[Reply(response("in_progress"))] * 2, Reply(COMPLETED))
    result = ask(stub.base_url, make_agent("m"), retry_policy=sleeps.retry_policy)
    assert result.final_output == "Done."
    assert result.last_response_id == "resp_1"
    assert result.context_wrapper.usage.total_tokens == 3
    assert stub.requests == ["POST /responses", *["GET /responses/resp_1"] * 3]
    assert sleeps.seconds == [1.0, 1.0, 1.0]


def test_live_server_answers_in_the_background(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model(say("All", " well."))
    assert ask(server.base_url, make_agent(model)).final_output == "All well."
    assert len(upstream.calls(model)) == 1
    assert wait_status(server, model, "completed").background is True


@pytest.mark.parametrize(
    ("status", "error", "detail"),
    [
        ("failed", ResponseFailed, {"error": {"code": "server_error", "message": "It broke."}}),
        ("cancelled", ResponseCancelled, {}),
        ("incomplete", ResponseIncomplete, {"incomplete_details": {"reason": "max_output_tokens"}}),
    ],
)
def test_unsuccessful_response_raises_with_the_response(
    stub: Stub, status: str, error: type[Exception], detail: Any
) -> None:
    stub.script(Reply(response("in_progress")), Reply(response(status, **detail)))
    with pytest.raises(ModelBehaviorError) as caught:
        ask(stub.base_url, make_agent("m"), retry_policy=RecordedSleeps().retry_policy)
    assert isinstance(caught.value, error)
    assert isinstance(caught.value, plain.UnsuccessfulResponse)
    assert caught.value.response.status == status
    assert caught.value.response_id == "resp_1"


def test_length_limit_raises_with_the_partial_response(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model([text("Half a"), finish("length"), usage()])
    with pytest.raises(ResponseIncomplete) as caught:
        ask(server.base_url, make_agent(model))
    assert caught.value.response.output_text == "Half a"


# -- intervals


def test_poll_header_sets_the_interval(stub: Stub) -> None:
    sleeps = RecordedSleeps()
    stub.script(
        Reply(response("queued"), openai_poll_after_ms="250"),
        Reply(response("in_progress"), openai_poll_after_ms="4000"),
        Reply(COMPLETED),
    )
    ask(stub.base_url, make_agent("m"), retry_policy=sleeps.retry_policy)
    assert sleeps.seconds == [0.25, 4.0]


def test_explicit_interval_overrides_the_header(stub: Stub) -> None:
    sleeps = RecordedSleeps()
    stub.script(Reply(response("queued"), openai_poll_after_ms="250"), Reply(COMPLETED))
    ask(stub.base_url, make_agent("m", background_poll_interval_seconds=7), retry_policy=sleeps.retry_policy)
    assert sleeps.seconds == [7]


def test_poll_timeout_leaves_the_run_alone(server: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Late.")])
    with pytest.raises(PollTimeout) as caught:
        ask(server.base_url, make_agent(model, background_max_wait_seconds=0.2))
    gate.open()
    assert wait_status(server, model, "completed").id == caught.value.response_id


# -- one submit


def retrying() -> ModelSettings:
    """Make settings with a retry policy of the SDK that approves of every retry."""
    policy = lambda _: RetryDecision(retry=True, delay=0.0, approve_unsafe_replay=True)  # noqa: E731
    return ModelSettings(retry=ModelRetrySettings(max_retries=3, policy=policy))


@pytest.mark.parametrize("status", [401, 404])
def test_error_while_polling_never_submits_again(stub: Stub, status: int) -> None:
    stub.script(Reply(response("in_progress")), *[refuse(status)] * 8)
    with pytest.raises(APIStatusError):
        ask(stub.base_url, make_agent("m", settings=retrying()), retry_policy=RecordedSleeps().retry_policy)
    assert [each for each in stub.requests if each.startswith("POST")] == ["POST /responses"]


def test_poll_timeout_never_submits_again(stub: Stub) -> None:
    stub.script(*[Reply(response("in_progress"))] * 9)
    settings = retrying()
    settings.extra_args = {"background_max_wait_seconds": 0.05}
    with pytest.raises(PollTimeout):
        ask(stub.base_url, make_agent("m", settings=settings))
    assert stub.requests.count("POST /responses") == 1


def test_refused_submit_is_retried_by_the_sdks_policy_under_the_same_key(stub: Stub) -> None:
    stub.script(refuse(500), Reply(COMPLETED))
    settings = ModelSettings(
        retry=ModelRetrySettings(max_retries=1, policy=retry_policies.http_status([500]), backoff={"initial_delay": 0})
    )
    assert ask(stub.base_url, make_agent("m", settings=settings)).final_output == "Done."
    first, second = (headers["idempotency-key"] for _, _, headers in stub.asked)
    assert first == second, "a repeat of an unanswered submit goes out under the same key"


def test_submit_with_a_lost_answer_attaches_to_its_run(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model(say("Once."))
    with Proxy(server.port, DropAnswer()) as proxy:
        assert ask(proxy.base_url, make_agent(model)).final_output == "Once."
    assert len(upstream.calls(model)) == 1
    assert len(list_responses(server, model)) == 1


# -- settings


def test_background_off_sends_a_foreground_call(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model(say("Plain."))
    assert ask(server.base_url, make_agent(model, background=False)).final_output == "Plain."
    assert not wait_status(server, model, "completed").background


def test_setting_of_the_agent_overrides_the_provider(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model()
    ask(server.base_url, make_agent(model, background=True), background=False)
    assert wait_status(server, model, "completed").background is True


@pytest.mark.parametrize(
    ("settings", "name", "expected"),
    [
        (ModelSettings(), "small", False),
        (ModelSettings(reasoning=Reasoning(effort="medium")), "small", False),
        (ModelSettings(reasoning=Reasoning(effort="high")), "small", True),
        (ModelSettings(), "very-slow", True),
        (ModelSettings(store=False), "very-slow", False),
    ],
)
def test_auto_selects_high_effort_and_listed_models(
    stub: Stub, settings: ModelSettings, name: str, expected: bool
) -> None:
    stub.script(Reply(COMPLETED))
    settings.extra_args = {"background": "auto"}

    async def run() -> None:
        async with connect(stub.base_url) as client:
            model = DurableResponsesModel(name, client, auto_models=("very-*",))
            await Runner.run(Agent(name="a", model=model, model_settings=settings), "Hello")

    asyncio.run(run())
    has_key = ["idempotency-key" in headers for _, _, headers in stub.asked]
    assert has_key == [expected], "only what goes to the background has a key"


def test_setting_on_the_model_and_on_the_agent_is_a_type_error(stub: Stub) -> None:
    async def run() -> None:
        async with connect(stub.base_url) as client:
            model = DurableResponsesModel("m", client, background=True)
            await Runner.run(Agent(name="a", model=model, model_settings=_settings(background=True)), "Hello")

    with pytest.raises(TypeError, match="multiple values for 'background'"):
        asyncio.run(run())
    assert stub.requests == []


def test_setting_in_extra_args_and_extra_body_is_a_type_error(stub: Stub) -> None:
    settings = ModelSettings(extra_args={"background": True}, extra_body={"background": False})
    with pytest.raises(TypeError, match="multiple values"):
        ask(stub.base_url, make_agent("m", settings=settings))
    assert stub.requests == []


@pytest.mark.parametrize("place", ["store", "extra_args", "extra_body"])
def test_background_without_store_raises_before_any_call(stub: Stub, place: str) -> None:
    settings = ModelSettings(store=False) if place == "store" else ModelSettings(**{place: {"store": False}})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="must be stored"):
        ask(stub.base_url, make_agent("m", settings=settings))
    assert stub.requests == []


@pytest.mark.parametrize(
    "wrong", [{"background": "yes"}, {"on_cancel": "stop"}, {"background_poll_interval_seconds": 0}]
)
def test_invalid_setting_raises_before_any_call(stub: Stub, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        ask(stub.base_url, make_agent("m", **wrong))
    with pytest.raises(UserError):
        DurableProvider(**wrong)
    assert stub.requests == []


def test_background_call_continues_a_conversation(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model(say("One."), say("Two."))

    async def run() -> None:
        async with connect(server.base_url) as client:
            conversation = await client.conversations.create()
            for _ in range(2):
                await Runner.run(make_agent(model), "Next", run_config=durable(client), conversation_id=conversation.id)

    asyncio.run(run())
    answers = [each["content"] for each in upstream.calls(model)[1].messages if each["role"] == "assistant"]
    assert answers == ["One."]


def _settings(**extra: Any) -> ModelSettings:
    return ModelSettings(extra_args=extra)

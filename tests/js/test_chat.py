"""The transport for Vercel's `ai`: its chat, in Node, on conversations of a live server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.test_cuts import SCRIPT
from tests.support.javascript import ROOT, JavaScript, find_installed, find_program
from tests.support.proxy import Cut, Proxy
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, Refuse, call, ending, reasoning, say, text

Json = dict[str, Any]

CHAT = """
    const outlive = new library.Outlive({ baseURL, retry: { first: 5, longest: 100 } });
    const open = (id, messages, options = {}) => {
      const transport = new library.OutliveChatTransport({ outlive, model, ...options });
      return { transport, chat: new library.Chat({ id, transport, messages }) };
    };
    const until = async (condition) => {
      while (!condition()) await new Promise((done) => setTimeout(done, 10));
    };
    const texts = (messages) => messages.map(({ role, parts }) =>
      [role, parts.filter((part) => part.type === "text").map((part) => part.text).join("")]);
"""


@pytest.fixture(scope="module")
def chats() -> Iterator[JavaScript]:
    find_installed("esbuild")
    with JavaScript(find_program("node"), library=(ROOT / "tests" / "js" / "chat.mjs").as_uri()) as running:
        yield running


def run(chats: JavaScript, server: OutliveServer, code: str, model: str, base_url: str | None = None) -> Any:
    """Run code on a new conversation."""
    conversation = server.client.create_conversation()
    return chats.run(CHAT + code, baseURL=base_url or server.base_url, conversation=conversation, model=model)


def test_a_chat_is_a_conversation_that_a_second_page_opens(
    chats: JavaScript, server: OutliveServer, upstream: FakeUpstream
) -> None:
    model = upstream.model([reasoning("Hm."), *say("Once ", "upon.")], say("And ", "then."))
    code = """
        const { chat, transport } = open(conversation);
        await chat.sendMessage({ text: "Hi" });
        await chat.sendMessage({ text: "More" });
        return [texts(chat.messages), await transport.messages(conversation), chat.messages, chat.status];
    """
    told, loaded, messages, status = run(chats, server, code, model)
    assert told == [["user", "Hi"], ["assistant", "Once upon."], ["user", "More"], ["assistant", "And then."]]
    assert [message["role"] for message in loaded] == ["user", "assistant", "user", "assistant"]
    assert [part["type"] for part in loaded[1]["parts"]] == ["reasoning", "text"]
    assert [part["type"] for part in messages[1]["parts"]] == ["step-start", "reasoning", "text"]
    assert messages[1]["metadata"]["status"] == "completed" and status == "ready"
    # The model was given each message once.
    given = [message["role"] for message in upstream.calls(model)[1].messages]
    assert given == ["user", "assistant", "user"]


def test_a_second_page_takes_up_a_running_answer_and_stops_it(
    chats: JavaScript, server: OutliveServer, upstream: FakeUpstream
) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon."), *ending()])
    code = """
        const first = open(conversation);
        const sending = first.chat.sendMessage({ text: "Hi" });
        await until(() => texts(first.chat.messages).at(-1)?.[1] === "Once ");
        const second = open(conversation, await first.transport.messages(conversation));
        const before = texts(second.chat.messages);
        const resuming = second.chat.resumeStream();
        await until(() => texts(second.chat.messages).at(-1)?.[1] === "Once ");
        emit("both");
        await second.chat.stop();
        await Promise.all([sending, resuming]);
        const third = open(conversation);
        await third.chat.resumeStream();
        return [before, texts(first.chat.messages), texts(third.chat.messages), await outlive.list({ conversation })];
    """
    conversation = server.client.create_conversation()
    running = chats.start(CHAT + code, baseURL=server.base_url, conversation=conversation, model=model)
    assert running.next_emitted() == "both"
    before, told, none, listed = running.result()
    gate.open()
    assert before == [["user", "Hi"]] and told == [["user", "Hi"], ["assistant", "Once "]] and none == []
    assert [each["status"] for each in listed["data"]] == ["cancelled"]


def test_an_answer_that_ends_between_loading_and_resuming_is_shown(
    chats: JavaScript, server: OutliveServer, upstream: FakeUpstream
) -> None:
    gate = Gate()
    code = """
        const { chat } = open(conversation);
        const sending = chat.sendMessage({ text: "Hi" });
        await until(() => texts(chat.messages).at(-1)?.[1] === "Once ");
        const { transport } = open(conversation);
        const messages = await transport.messages(conversation);
        const second = new library.Chat({ id: conversation, transport, messages });
        emit("loaded");
        await sending;
        await second.resumeStream();
        const again = texts(second.messages);
        await second.resumeStream();
        const third = open(conversation, await transport.messages(conversation)).chat;
        await third.resumeStream();
        return [again, texts(second.messages), texts(third.messages)];
    """
    conversation = server.client.create_conversation()
    model = upstream.model([text("Once "), gate, text("upon."), *ending()])
    running = chats.start(CHAT + code, baseURL=server.base_url, conversation=conversation, model=model)
    assert running.next_emitted() == "loaded"
    gate.open()
    assert running.result() == [[["user", "Hi"], ["assistant", "Once upon."]]] * 3


def test_a_chat_that_is_only_left_goes_on_and_can_be_stopped_by_name(
    chats: JavaScript, server: OutliveServer, upstream: FakeUpstream
) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, *ending()])
    code = """
        const { chat, transport } = open(conversation, [], { cancelOnAbort: false });
        const sending = chat.sendMessage({ text: "Hi" });
        await until(() => texts(chat.messages).at(-1)?.[1] === "Once ");
        await chat.stop();
        await sending;
        const left = await outlive.running(conversation);
        return [left.length, await transport.stop(conversation), await transport.stop(conversation)];
    """
    assert run(chats, server, code, model) == [1, True, False]
    gate.open()


def test_an_answer_is_asked_for_again_and_an_earlier_question_changed(
    chats: JavaScript, server: OutliveServer, upstream: FakeUpstream
) -> None:
    model = upstream.model(say("One."), say("Two."), say("Three."), say("Four."))
    code = """
        const { chat, transport } = open(conversation);
        await chat.sendMessage({ text: "a" });
        await chat.sendMessage({ text: "b" });
        await chat.regenerate();
        const again = texts(chat.messages);
        await chat.sendMessage({ text: "c", messageId: chat.messages[0].id });
        return [again, texts(chat.messages), texts(await transport.messages(conversation))];
    """
    again, changed, stored = run(chats, server, code, model)
    assert again == [["user", "a"], ["assistant", "One."], ["user", "b"], ["assistant", "Three."]]
    assert changed == stored == [["user", "c"], ["assistant", "Four."]]
    given = [[m["content"] for m in call.body["messages"]] for call in upstream.calls(model)]
    assert given[2] == given[1] and len(given[3]) == 1


def test_a_tool_of_the_page_is_called_and_answered(
    chats: JavaScript, server: OutliveServer, upstream: FakeUpstream
) -> None:
    model = upstream.model(
        [call(0, '{"place"', "call_1", "look"), call(0, ': "lake"}'), *ending("tool_calls")], say("Wet.")
    )
    code = """
        const body = { tools: [{ type: "function", name: "look", parameters: { type: "object" }, strict: false }] };
        const { chat, transport } = open(conversation, [], { body });
        await chat.sendMessage({ text: "Hi" });
        const part = chat.messages.at(-1).parts.at(-1);
        await chat.addToolOutput({ tool: "look", toolCallId: part.toolCallId, output: { is: "wet" } });
        await chat.sendMessage();
        return [part, chat.messages, await transport.messages(conversation)];
    """
    part, messages, stored = run(chats, server, code, model)
    assert (part["type"], part["state"], part["input"]) == ("tool-look", "input-available", {"place": "lake"})
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[1]["parts"][-1]["text"] == "Wet."
    output = next(m for m in upstream.calls(model)[1].body["messages"] if m["role"] == "tool")
    assert json.loads(output["content"]) == {"is": "wet"}
    assert [p["type"] for p in stored[1]["parts"]] == ["tool-look", "step-start", "text"]
    assert stored[1]["parts"][0]["state"] == "output-available"


def test_a_chat_survives_cuts_and_shows_errors(
    chats: JavaScript, server: OutliveServer, upstream: FakeUpstream
) -> None:
    code = """
        const { chat } = open(conversation);
        await chat.sendMessage({ text: "Hi" });
        return [texts(chat.messages), chat.status, chat.error?.message];
    """
    with Proxy(server.port, Cut(9), Cut(30, 7, "clean")) as proxy:
        told, status, _ = run(chats, server, code, upstream.model(SCRIPT), proxy.base_url)
        assert proxy.accepted >= 3
    assert status == "ready" and told[1][1].count("wörd") == 191
    _, status, message = run(chats, server, code, upstream.model([Refuse(400)]))
    assert status == "error" and message
    _, status, message = run(chats, server, code, "")
    assert status == "error" and "model" in message


def test_the_example_names_the_versions_that_are_tried() -> None:
    tried = json.loads((ROOT / "tests" / "js" / "package.json").read_text())["dependencies"]
    named = json.loads((ROOT / "examples" / "chat" / "package.json").read_text())["dependencies"]
    assert named.items() <= tried.items()

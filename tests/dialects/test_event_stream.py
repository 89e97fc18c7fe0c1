"""The SSE parser returns whole events for every cut of the network."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.errors import UpstreamFault
from outlive.dialects.transport import event_stream
from outlive.dialects.transport.event_stream import EventStream

lines = st.sampled_from(["\n", "\r\n"])
payloads = st.lists(st.sampled_from([b"{}", b'{"a":1}', '{"text":"\\n\\n ü"}'.encode(), b"data: x"]), max_size=8)
noise = st.sampled_from([b"", b": ping", b"event: x", b"id: 1", b": a\n: b"])


def cut(raw: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(raw), *(place % (len(raw) + 1) for place in cuts)})
    return [raw[start:end] for start, end in pairwise(places)]


@given(payloads, noise, lines, st.booleans(), st.lists(st.integers(0, 10_000), max_size=10))
def test_payloads_are_the_same_for_every_cut_of_the_network(
    given_payloads: list[bytes], between: bytes, newline: str, space: bool, cuts: list[int]
) -> None:
    prefix = b"data: " if space else b"data:"
    raw = b"".join(between + b"\n\n" + prefix + payload + b"\n\n" for payload in given_payloads) + b"data: [DONE]\n\n"
    raw = raw.replace(b"\n", newline.encode())
    stream = EventStream()
    assert [payload for piece in cut(raw, cuts) for payload in stream.feed(piece)] == given_payloads
    assert stream.done


def test_data_on_several_lines_is_one_payload() -> None:
    assert EventStream().feed(b'event: x\ndata: {"a":\ndata: 1}\n\n') == [b'{"a":\n1}']


@pytest.mark.parametrize(
    ("read", "payloads"),
    [
        (b"data: 1\n\ndata: 2\n\n", [b"1", b"2"]),
        (b"data: 1\n\ndata: \n\ndata: 2\n\n", [b"1", b"2"]),
        (b"data: 1\n\nid: 5\ndata: 2\n\n: ping\n\ndata: 3\n\n", [b"1", b"2", b"3"]),
        (b"data: 1\n\n\ndata: 2\n\n\n\n", [b"1", b"2"]),
        (b"data: 1\r\n\ndata: 2\n\n", [b"1", b"2"]),
        (b"data: {}\n\n", [b"{}"]),
        (b"data: {}\r\n\n", [b"{}"]),
        (b"data: \r\n\n", []),
    ],
)
def test_events_of_one_read_may_have_any_shape(read: bytes, payloads: list[bytes]) -> None:
    assert EventStream().feed(read) == payloads


@given(st.lists(st.sampled_from([b"data: ", b"{}", b"1", b"[DONE]", b"\r", b"\n", b"\n\n", b": x"]), max_size=6))
def test_one_read_is_parsed_like_its_bytes_one_by_one(parts: list[bytes]) -> None:
    read, whole, slow = b"".join(parts), EventStream(), EventStream()
    assert whole.feed(read) == [payload for byte in read if not slow.done for payload in slow.feed(bytes([byte]))]
    assert whole.done == slow.done


def test_events_after_done_are_dropped() -> None:
    stream = EventStream()
    assert stream.feed(b"data: 1\n\ndata: [DONE]\n\ndata: 2\n\n") == [b"1"]
    assert stream.done


def test_a_last_event_may_lack_its_blank_line() -> None:
    stream = EventStream()
    assert stream.feed(b"data: 1\n\ndata: 2") == [b"1"]
    assert stream.end() == [b"2"]
    assert EventStream().end() == []


def test_an_error_field_becomes_an_error_payload() -> None:
    assert EventStream().feed(b'error: {"message":"oh"}\n\n') == [b'{"error":{"message":"oh"}}']
    assert EventStream().feed(b'error: {"error":{}}\n\n') == [b'{"error":{}}']


def test_an_event_without_end_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MOST_EVENT", 100_000)
    stream = EventStream()
    assert [stream.feed(b"x" * 20_000) for _ in range(5)] == [[]] * 5
    with pytest.raises(UpstreamFault, match="more than is taken") as caught:
        stream.feed(b"x" * 20_000)
    assert not caught.value.retryable


def test_an_answer_without_end_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MOST_ANSWER", 1000)
    stream = EventStream()
    assert [stream.feed(b"data: xx\n\n") for _ in range(100)] == [[b"xx"]] * 100
    with pytest.raises(UpstreamFault, match="more than is taken"):
        stream.feed(b"data: xx\n\n")


@pytest.mark.parametrize("line", [b"x" * 10_000, b"data: " + b"x" * 9_993 + b"\n", b"x" * 9_998 + b"\r\n"])
def test_a_long_event_is_read_in_linear_time(line: bytes) -> None:
    stream = EventStream()
    started = time.thread_time()
    for _ in range(2_000):
        assert stream.feed(line) == []
    assert stream.feed(b"\ndata: 1\n\ndata: 2\n")[-1] == b"1"
    assert time.thread_time() - started < 1.0  # some 20 s if each piece is joined with all before it
    assert stream.end() == [b"2"]


@pytest.mark.parametrize(
    "event", [b"event: x\ndata: 1", b"event: x\ndata:1", b"event:x\ndata: 1", b"data: 1\nevent: x"]
)
def test_an_event_may_have_a_name(event: bytes) -> None:
    assert EventStream().feed(event + b"\n\nevent: y\n\n") == [b"1"]

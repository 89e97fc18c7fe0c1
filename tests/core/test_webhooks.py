"""The parts of webhooks without I/O: which events there are, their payload and signature, the pauses."""

from __future__ import annotations

import json
import time

import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from outlive.core import webhooks


def test_an_end_is_one_event_and_an_approval_that_waits_another_before_it() -> None:
    message = {"type": "message"}
    assert webhooks.find_events("failed", [message]) == ["response.failed"]
    waiting = [message, {"type": "mcp_approval_request"}]
    assert webhooks.find_events("completed", waiting) == ["response.approval_required", "response.completed"]


def test_every_event_that_a_response_sends_can_be_subscribed_to() -> None:
    sent = {
        event
        for status in ("completed", "failed", "cancelled", "incomplete")
        for event in webhooks.find_events(status, [{"type": "mcp_approval_request"}])
    }
    assert sent == set(webhooks.EVENT_TYPES)


def test_a_payload_is_the_same_on_every_attempt_and_holds_ids_alone() -> None:
    body = webhooks.make_payload("response.completed", "resp_1", 1000.9)
    assert body == webhooks.make_payload("response.completed", "resp_1", 1000.9)
    payload = json.loads(body)
    assert payload.pop("id").startswith("evt_")
    assert payload == {
        "object": "event",
        "created_at": 1000,
        "type": "response.completed",
        "data": {"id": "resp_1"},
    }
    assert json.loads(webhooks.make_payload("response.failed", "resp_1", 1.0))["id"] != json.loads(body)["id"]


def test_the_sdk_verifies_a_signature_of_each_secret_and_no_other() -> None:
    client = OpenAI(api_key="x")
    both = [webhooks.make_secret(b"a" * 32), webhooks.make_secret(b"b" * 32)]
    at, body = int(time.time()), b'{"id": "evt_1"}'
    headers = {
        "webhook-id": "wh_1",
        "webhook-timestamp": str(at),
        "webhook-signature": webhooks.sign(both, "wh_1", at, body),
    }
    for secret in both:
        client.webhooks.verify_signature(body, headers, secret=secret)
    for wrong in (headers | {"webhook-id": "wh_2"}, headers | {"webhook-timestamp": str(at + 1)}):
        with pytest.raises(InvalidWebhookSignatureError):
            client.webhooks.verify_signature(body, wrong, secret=both[0])
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.verify_signature(body, headers, secret=webhooks.make_secret(b"c" * 32))


def test_pauses_double_up_to_an_hour_and_are_never_shorter_than_the_receiver_asked() -> None:
    assert [webhooks.pause_after(attempts, 0.5, None) for attempts in (1, 2, 3, 4)] == [1, 2, 4, 8]
    assert webhooks.pause_after(1, 0.0, None) == 0.75 and webhooks.pause_after(1, 1.0, None) == 1.25
    assert webhooks.pause_after(10_000, 0.5, None) == 3600
    assert webhooks.pause_after(1, 0.5, 30.0) == 30 and webhooks.pause_after(7, 0.5, 30.0) == 64

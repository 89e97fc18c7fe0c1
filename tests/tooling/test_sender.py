"""The sender of webhooks: which addresses it connects to, under which name, and what it makes of an answer."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from outlive.core.errors import InvalidRequest
from outlive.tooling import sender
from outlive.tooling.sender import HttpSender, PrivateHost, resolve_public
from tests.support.certificates import HOST, Authority
from tests.support.forward_proxy import ForwardProxy, needs_tinyproxy
from tests.support.receiver import Receiver

DEAD = "127.9.9.9"  # nothing listens there


async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
    await writer.drain()
    writer.close()


def test_a_host_with_any_private_address_is_refused() -> None:
    with pytest.raises(PrivateHost):
        asyncio.run(resolve_public("127.1", 80))
    with pytest.raises(PrivateHost):
        asyncio.run(resolve_public("localhost", 80))
    assert asyncio.run(resolve_public("1.1.1.1", 80)) == ["1.1.1.1"]


def test_the_address_that_was_checked_is_connected_to_with_the_hosts_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    asked: list[str] = []

    async def find(host: str, port: int) -> list[str]:
        asked.append(host)
        return [DEAD, "127.0.0.1"]  # the first accepts no connection

    monkeypatch.setattr(sender, "resolve_public", find)

    async def send(context: ssl.SSLContext, host: str) -> tuple[int | None, str]:
        server = await asyncio.start_server(answer_once, "127.0.0.1", 0, ssl=context)
        async with server:
            sending = HttpSender()
            url = f"https://{host}:{server.sockets[0].getsockname()[1]}/hooks"
            answer = await sending.send(url, {"webhook-id": "wh_1"}, b"{}")
            sending.close()
        return answer.status, answer.reason

    assert asyncio.run(send(authority.serve(), HOST)) == (204, "delivered")
    status, reason = asyncio.run(send(authority.serve(), "receiver.example"))
    assert status is None and "SSLCertVerificationError" in reason
    assert asked == [HOST, "receiver.example"]


@pytest.mark.parametrize(
    ("private", "url", "allowed"),
    [
        (False, "https://example.com/a?b=c", True),
        (False, "http://example.com/", False),
        (False, "https://localhost/", False),
        (True, "http://127.0.0.1:9000/", True),
        (True, "https://u:p@example.com/", False),
        (True, "https://example.com/#part", False),
        (True, "https://b\u00fccher.example/", False),
        (True, "https://example.com:0/", False),
        (True, "https://example..com/", False),
        (True, f"https://{'x' * 64}.example/", False),
        (True, "gopher://example.com/", False),
    ],
)
def test_an_address_is_checked_when_it_is_given(private: bool, url: str, allowed: bool) -> None:
    check: Callable[[str], None] = HttpSender(private=private).check
    if allowed:
        check(url)
    else:
        with pytest.raises(InvalidRequest) as refused:
            check(url)
        assert refused.value.param == "url"


def test_what_is_no_answer_is_told_apart() -> None:
    async def send(url: str) -> str:
        sending = HttpSender(private=True, seconds=0.3)
        answer = await sending.send(url, {}, b"{}")
        sending.close()
        assert answer.status is None and not answer.is_ok
        return answer.reason

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"this is not HTTP\r\n\r\n")
        await listen(reader, writer)

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                while await reader.read(1024):
                    pass
        finally:
            writer.transport.abort()

    async def body() -> None:
        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            assert await send(f"http://127.0.0.1:{port}/") == "broken (ConnectionBroken)"
        assert await send(f"http://127.0.0.1:{port}/") == "connection failed (ConnectionRefusedError)"
        assert (await send("http://example..com/")).startswith("broken (Unicode")  # stored by an earlier version
        silent = await asyncio.start_server(listen, "127.0.0.1", 0)
        async with silent:
            port = silent.sockets[0].getsockname()[1]
            assert await send(f"http://127.0.0.1:{port}/") == "no answer in 0.3 s"
            await asyncio.sleep(0.05)  # the connections are closed on the other side too

    asyncio.run(body())


@needs_tinyproxy
@pytest.mark.parametrize("through", [False, True])
def test_webhooks_go_through_the_proxy_only_if_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: bool
) -> None:
    with ForwardProxy(tmp_path) as proxy, Receiver() as receiver:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)

        async def send() -> int | None:
            sending = HttpSender(private=True, proxied=through)
            answer = await sending.send(receiver.url.replace("127.0.0.1", HOST), {}, b'{"type": "x", "data": {}}')
            sending.close()
            return answer.status

        assert asyncio.run(send()) == 200
        assert bool(proxy.requests) == through and len(receiver.received) == 1

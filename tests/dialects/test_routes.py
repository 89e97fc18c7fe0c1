"""The ways to upstreams: through a real forward proxy, and with certificates of one's own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outlive.core.errors import UpstreamFault
from outlive.core.requests.create import CreateResponse
from outlive.dialects.chat.backend import ChatBackend
from outlive.ports.backend import ModelCall
from tests.dialects.upstream import Server, hang, serve, streaming
from tests.support.certificates import HOST, Authority
from tests.support.forward_proxy import PASSWORD, USER, ForwardProxy, needs_tinyproxy
from tests.support.server import free_port

PIECES = [b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n', b"data: [DONE]\n\n"]
CALL = ModelCall("m", CreateResponse(model="m", input=[]), [])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForwardProxy]:
    with ForwardProxy(tmp_path_factory.mktemp("proxy")) as running:
        yield running


@asynccontextmanager
async def serve_tls(
    authority: Authority, *pieces: bytes, clients: bool = False, then: Any = None, **fields: Any
) -> AsyncGenerator[tuple[ChatBackend, Server], None]:
    fields = {"ca_file": str(authority.file)} | fields
    answer = streaming(*(pieces or PIECES), then=then)
    async with serve(answer, host=HOST, tls=authority.serve(clients=clients), **fields) as served:
        yield served


async def ask(backend: ChatBackend) -> bytes:
    return b"".join([chunk async for chunks in backend.stream(CALL) for chunk in chunks])


async def ask_in_vain(backend: ChatBackend) -> UpstreamFault:
    with pytest.raises(UpstreamFault) as raised:
        await ask(backend)
    return raised.value


@needs_tinyproxy
def test_an_https_upstream_is_reached_through_one_tunnel_that_is_used_again(
    proxy: ForwardProxy, authority: Authority
) -> None:
    async def main() -> None:
        before = len(proxy.requests)
        async with serve_tls(authority, proxy=proxy.url) as (backend, server):
            for _ in range(3):
                assert b"Hi" in await ask(backend)
            assert len(server.connections) == 1
            assert [each.path for each in server.requests] == ["/v1/chat/completions"] * 3
            assert not any(name.lower().startswith("proxy-") for each in server.requests for name in each.headers)
        assert [line.split()[0] for line in proxy.requests[before:]] == ["CONNECT"]

    asyncio.run(main())


@needs_tinyproxy
def test_an_http_upstream_is_asked_for_by_its_whole_address(proxy: ForwardProxy) -> None:
    async def main() -> None:
        before = len(proxy.requests)
        async with serve(streaming(*PIECES), host=HOST, proxy=proxy.url) as (backend, server):
            assert b"Hi" in await ask(backend)
            assert server.requests[0].host.startswith(f"{HOST}:")
            assert proxy.requests[before:] == [f"POST http://{server.requests[0].host}/v1/chat/completions HTTP/1.1"]

    asyncio.run(main())


@needs_tinyproxy
@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize("given", ["", f"{USER}:wrong-pass@"])
def test_a_proxy_that_refuses_the_password_is_named_without_it(
    proxy: ForwardProxy, authority: Authority, secure: bool, given: str
) -> None:
    async def main() -> UpstreamFault:
        fields: dict[str, Any] = {"proxy": proxy.url.replace(f"{USER}:{PASSWORD}@", given)}
        if secure:
            fields |= {"tls": authority.serve(), "ca_file": str(authority.file)}
        async with serve(streaming(*PIECES), host=HOST, **fields) as (backend, server):
            fault = await ask_in_vain(backend)
            assert not server.requests
            return fault

    fault = asyncio.run(main())
    named = "The proxy of the model's server (test) refused this server's user name or password."
    if given and not secure:
        # The 401 of tinyproxy before 1.11.3 looks like one of the upstream.
        assert fault.message in {"The model's server refused this server's key (it answered 401).", named}
    else:
        assert fault.message == named
    assert not fault.retryable


@needs_tinyproxy
def test_a_tunnel_that_the_proxy_cannot_open_is_tried_again_later(proxy: ForwardProxy, authority: Authority) -> None:
    async def main() -> UpstreamFault:
        async with serve_tls(authority, proxy=proxy.url, url=f"https://{HOST}:{free_port()}/v1") as (backend, _):
            return await ask_in_vain(backend)

    fault = asyncio.run(main())
    assert "The proxy of the model's server (test) could not open a connection: it answered 50" in fault.message
    assert fault.retryable
    assert USER not in fault.message and PASSWORD not in fault.message and HOST not in fault.message


def test_a_proxy_that_is_not_there_is_named_as_the_proxy(authority: Authority) -> None:
    async def main() -> UpstreamFault:
        async with serve_tls(authority, proxy=f"http://127.0.0.1:{free_port()}") as (backend, _):
            return await ask_in_vain(backend)

    fault = asyncio.run(main())
    assert fault.message == "The proxy of the model's server (test) could not be reached: Connection refused."


@needs_tinyproxy
def test_a_cancelled_run_closes_its_tunnel(proxy: ForwardProxy, authority: Authority) -> None:
    async def main() -> None:
        async with serve_tls(authority, PIECES[0], then=hang, proxy=proxy.url) as (backend, server):
            async with aclosing(backend.stream(CALL)) as stream:
                assert b"Hi" in (await anext(stream))[0]
            async with asyncio.timeout(5):
                await server.left.wait()

    asyncio.run(main())


@needs_tinyproxy
def test_the_proxy_itself_may_be_reached_by_tls(proxy: ForwardProxy, authority: Authority) -> None:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            writer.write(piece)
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection("127.0.0.1", proxy.port)
        await asyncio.gather(relay(reader, inner[1]), relay(inner[0], writer))

    async def main() -> None:
        front = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=authority.serve())
        url = f"https://{USER}:{PASSWORD}@{HOST}:{front.sockets[0].getsockname()[1]}"
        async with serve_tls(authority, proxy=url) as (backend, server):
            assert b"Hi" in await ask(backend)
            assert b"Hi" in await ask(backend)
            assert len(server.connections) == 1
        front.close()

    asyncio.run(main())


def test_an_upstream_of_an_unknown_authority_is_refused(authority: Authority) -> None:
    async def main() -> UpstreamFault:
        async with serve_tls(authority, ca_file=None) as (backend, _):
            return await ask_in_vain(backend)

    fault = asyncio.run(main())
    assert fault.message == "The certificate of the model's server (test) is not valid."
    assert not fault.retryable


def test_a_client_certificate_is_shown_to_the_upstream_that_asks_for_it(authority: Authority) -> None:
    cert, key = map(str, authority.sign("client"))

    async def main() -> None:
        async with serve_tls(authority, clients=True, client_cert=cert, client_key=key) as (backend, server):
            assert b"Hi" in await ask(backend)
            shown = server.requests[0].transport.get_extra_info("peercert")  # type: ignore[union-attr]
            assert shown["subject"] == ((("commonName", "client"),),)

    asyncio.run(main())


def test_an_upstream_that_asks_for_a_client_certificate_gets_no_request_without_one(authority: Authority) -> None:
    async def main() -> UpstreamFault:
        async with serve_tls(authority, clients=True) as (backend, server):
            fault = await ask_in_vain(backend)
            assert not server.requests
            return fault

    # TLS 1.3 refuses a client after the handshake: it looks like a broken connection.
    assert asyncio.run(main()).message == "The connection to the model's server (test) broke."


def test_a_certificate_that_is_replaced_is_used_by_the_next_connection(tmp_path: Path, authority: Authority) -> None:
    cert, key = (Path(file) for file in Authority(tmp_path, "other").sign("client"))

    async def main() -> None:
        async with serve_tls(authority, clients=True, client_cert=str(cert), client_key=str(key)) as (backend, _):
            await ask_in_vain(backend)
            for old, new in zip((cert, key), authority.sign("renewed"), strict=True):
                old.write_bytes(new.read_bytes())
                os.utime(old, (1, 1))
            assert b"Hi" in await ask(backend)

    asyncio.run(main())

"""A program that prints its port: an upstream that reads and discards any request, and answers with one word."""

from __future__ import annotations

import asyncio
import re

CHUNK = '{"id": "1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": %s, "finish_reason": %s}]}'
CHUNKS = [CHUNK % ('{"content": "Discarded"}', "null"), CHUNK % ("{}", '"stop"'), "[DONE]"]
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + b"".join(
    b"data: %b\n\n" % piece.encode() for piece in CHUNKS
)


async def discard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    left = int(length[1]) if length else 0
    while left > 0 and (piece := await reader.read(1 << 20)):
        left -= len(piece)
    writer.write(ANSWER)
    await writer.drain()
    writer.close()


async def main() -> None:
    server = await asyncio.start_server(discard, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())

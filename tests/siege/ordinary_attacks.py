"""Attacks by requests that are allowed: too many of them, or each as large as it may be."""

from __future__ import annotations

import json

from tests.siege.attacks import WIDE, frame, open_socket
from tests.siege.target import MB, Target, attack, prepared_attack, together


@attack
def many_requests(target: Target) -> None:
    together(target, 50, lambda number: target.create())


@prepared_attack
def many_lists(target: Target) -> None:
    for _ in range(300):
        target.create(background=True)
    target.begin()
    together(target, 30, lambda number: target.ask("GET", "/v1/responses?limit=100"))


@attack
def many_deletions(target: Target) -> None:
    def run(number: int) -> None:
        made = target.create(background=True)
        if made and "id" in made:
            target.ask("DELETE", f"/v1/responses/{made['id']}")

    together(target, 30, run)


@attack
def many_unknown_ids(target: Target) -> None:
    together(target, 30, lambda number: target.ask("GET", f"/v1/responses/resp_{number:048}"))


@attack
def many_query_parameters(target: Target) -> None:
    query = "&".join(["status=completed"] * 3000)
    together(target, 20, lambda number: target.ask("GET", f"/v1/responses?{query}"))


@attack
def many_references(target: Target) -> None:
    items = [{"type": "item_reference", "id": f"msg_{n:060}"} for n in range(10_000)]
    together(target, 4, lambda number: target.create(input=items))


@attack
def many_items(target: Target) -> None:
    items = [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * 2} for _ in range(10_000)]
    together(target, 4, lambda number: target.create(input=items, background=True))


@attack
def many_tools(target: Target) -> None:
    schema = {"type": "object", "properties": {f"field_{n}": {"type": "string"} for n in range(100)}}
    tools = [{"type": "function", "name": f"tool_{n}", "parameters": schema} for n in range(128)]
    together(target, 8, lambda number: target.create(tools=tools))


@attack
def deep_schemas(target: Target) -> None:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(60):
        schema = {"type": "object", "properties": {"a": schema, "b": {"type": "string"}}}
    text = {"format": {"type": "json_schema", "name": "deep", "schema": schema}}
    together(target, 8, lambda number: target.create(text=text))


@attack
def escaped_texts(target: Target) -> None:
    # Six bytes each, so that 10 MB of text are 60 MB of JSON; half surrogates make a second pass necessary.
    bodies = [b'{"model": "usual/any", "input": "' + piece * (10 * MB) + b'"}' for piece in (b"\\u00e4", b"\\ud800")]
    together(target, 4, lambda number: target.ask("POST", "/v1/responses", bodies[number % 2]))


@attack
def large_images(target: Target) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * (9 * MB)}
    items = [{"role": "user", "content": [image] * 6}]
    together(target, 4, lambda number: target.create(input=items))


@attack
def large_chats(target: Target) -> None:
    body = {"model": "usual/any", "messages": [{"role": "user", "content": "x" * (50 * MB)}]}
    together(target, 4, lambda number: target.ask("POST", "/v1/chat/completions", body))


@attack
def long_texts_to_count(target: Target) -> None:
    body = {"model": "usual/any", "input": [{"role": "user", "content": "word " * (2 * MB)}] * 5}
    together(target, 4, lambda number: target.ask("POST", "/v1/responses/input_tokens", body))


@attack
def tiny_chunks(target: Target) -> None:
    head = "POST /v1/responses HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    head += f"Authorization: Bearer {target.key}\r\n\r\n"

    def run(number: int) -> None:
        target.flood(head.encode(), (b"1\r\n \r\n" * 10_000 for _ in range(100)))

    together(target, 10, run)


@attack
def large_frames(target: Target) -> None:
    values = b'{"type": "response.create", "model": "usual/any", "input": [' + b"[]," * 20_000 + b"[]]}"
    piece, last = frame(1, values[:60_000], final=False), frame(0, values[60_000:])

    def run(number: int) -> None:
        with open_socket(target) as connection:
            while not target.is_over:
                connection.sendall(piece + last)

    together(target, 10, run)


@attack
def large_messages(target: Target) -> None:
    piece = frame(0, b"x" * 60_000, final=False)

    def run(number: int) -> None:
        with open_socket(target) as connection:
            connection.sendall(frame(1, b'{"type": "response.create", "model": "usual/any", "input": "', final=False))
            for _ in range(260):
                connection.sendall(piece)
            connection.sendall(frame(0, WIDE.encode() + b'"}'))
            while not target.is_over and connection.recv(4096):
                pass

    together(target, 8, run)


def store_large_responses(target: Target, count: int) -> list[str]:
    """Store responses whose objects, and first and last events, hold long instructions."""
    made = [target.create(instructions="x" * (9 * MB), metadata={"n": str(n)}) for n in range(count)]
    target.begin()
    return [f"/v1/responses/{each['id']}" for each in made if each and "id" in each]


@prepared_attack
def unread_objects(target: Target) -> None:
    target.ask_without_reading("GET", store_large_responses(target, 5))


@prepared_attack
def unread_streams(target: Target) -> None:
    paths = store_large_responses(target, 5)
    target.ask_without_reading("GET", [f"{path}?stream=true&starting_after={n}" for path in paths for n in (-1, 1, 6)])


@prepared_attack
def unread_lists(target: Target) -> None:
    made = target.ask("POST", "/v1/conversations", {})
    items = [{"role": "user", "content": "x" * (5 * MB)}]
    for _ in range(4):
        target.ask("POST", f"/v1/conversations/{made['id']}/items", {"items": items})
    target.begin()
    target.ask_without_reading("GET", [f"/v1/conversations/{made['id']}/items?limit=100"])


@attack
def large_running_requests(target: Target) -> None:
    body = {"model": "usual/slow", "input": [{"role": "user", "content": "x" * (9 * MB)}] * 5, "background": True}
    together(target, 4, lambda number: target.ask("POST", "/v1/responses", body))


@prepared_attack
def wide_texts(target: Target) -> None:
    texts = [[{"role": "user", "content": "x" * (9 * MB) + WIDE}] * count for count in (6, 2, 1)]
    bodies = [json.dumps({"model": "usual/any", "input": each}, ensure_ascii=False).encode() for each in texts]
    target.begin()
    together(target, 6, lambda number: target.ask("POST", "/v1/responses", bodies[number % 3]))


@prepared_attack
def wide_chats(target: Target) -> None:
    message = {"role": "user", "content": "x" * (9 * MB) + WIDE}
    body = json.dumps({"model": "usual/any", "messages": [message] * 3}, ensure_ascii=False).encode()
    target.begin()
    together(target, 4, lambda number: target.ask("POST", "/v1/chat/completions", body))


@attack
def unread_answers(target: Target) -> None:
    body = json.dumps({"model": "usual/long", "input": "Hi", "stream": True, "store": False})
    target.ask_without_reading("POST", ["/v1/responses"], body)

"""Small questions to an upstream: what it lists, and what it answers to one tiny streamed chat completion."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import msgspec

from outlive.cli.wire import Broken, decode, exchange
from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.core.redactor import Redactor
from outlive.ports.backend import Upstream

MOST_TOKENS = 16
# An answer that is longer than this was not limited to MOST_TOKENS; reading on would only cost.
_TOO_MANY_PIECES, _TOO_MANY_CHARACTERS = 40, 200


class Answer(msgspec.Struct):
    """What came back."""

    status: int
    error: str = ""
    text: str = ""
    thought: str = ""
    finish: str | None = None
    usage: Json | None = None
    pieces: int = 0

    @property
    def refused(self) -> bool:
        return self.status >= 400

    @property
    def endless(self) -> bool:
        """More than was asked for: a limit was not kept."""
        tokens = (self.usage or {}).get("completion_tokens") or 0
        characters = len(self.text) + len(self.thought)
        return self.pieces > _TOO_MANY_PIECES or characters > _TOO_MANY_CHARACTERS or tokens > MOST_TOKENS + 8


class Questioner:
    """Asks one upstream, as the server would, but one question at a time."""

    def __init__(self, upstream: Upstream, timeout: float) -> None:
        self.upstream = upstream
        self._timeout = timeout

    def models(self, base: str | None = None) -> Answer | list[str]:
        """The names that the upstream lists, or its refusal."""
        with self._exchange("GET", (base or self.upstream.url) + "/models", None) as response:
            body = response.read()
        if response.status >= 400:
            return Answer(response.status, error=self._explain(body))
        value = decode(body)
        data = value.get("data") if isinstance(value, dict) else value
        if not isinstance(data, list):
            return Answer(404, error="It answers, but not with a list of models.")
        return [model["id"] for model in data if isinstance(model, dict) and isinstance(model.get("id"), str)]

    def ask(self, body: Json) -> Answer:
        """The answer to a streamed chat completion; reading stops when it is clearly endless."""
        url = self.upstream.url + "/chat/completions"
        with self._exchange("POST", url, msgspec.json.encode(body | {"stream": True})) as response:
            if response.status >= 400:
                return Answer(response.status, error=self._explain(response.read()))
            answer = Answer(response.status)
            while (line := response.readline()) and not answer.endless:
                payload = line.strip().removeprefix(b"data:").strip()
                if payload == b"[DONE]":
                    break
                if line.startswith(b"data:"):
                    self._take(decode(payload), answer)
            return answer

    def responds(self, body: Json) -> bool:
        """Whether it answers a question in the Responses API."""
        data = msgspec.json.encode(body | {"store": False})
        try:
            with self._exchange("POST", self.upstream.url + "/responses", data) as response:
                value = decode(response.read()) if response.status == 200 else None
        except UpstreamFault:
            return False
        return isinstance(value, dict) and value.get("object") == "response"

    def hide(self, text: str) -> str:
        """A sentence of the upstream's without our secrets, which some servers repeat."""
        secrets = (self.upstream.key, *self.upstream.headers.values(), *self.upstream.query.values())
        return " ".join(Redactor(secrets).redact(text).split())[:300]

    @contextmanager
    def _exchange(self, method: str, url: str, body: bytes | None) -> Iterator[http.client.HTTPResponse]:
        query = "?" + urlencode(self.upstream.query) if self.upstream.query else ""
        try:
            with exchange(method, url + query, self._headers(), body, self._timeout) as response:
                yield response
        except Broken as error:
            raise UpstreamFault(self.hide(str(error))) from error

    def _headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json", "accept": "*/*"}
        if self.upstream.key is not None and self.upstream.key_header == "authorization":
            headers["authorization"] = f"Bearer {self.upstream.key}"
        elif self.upstream.key is not None:
            headers[self.upstream.key_header] = self.upstream.key
        return headers | {name.lower(): value for name, value in self.upstream.headers.items()}

    def _take(self, chunk: object, answer: Answer) -> None:
        if not isinstance(chunk, dict):
            return
        if chunk.get("error"):
            # Some servers accept, and refuse only in the stream.
            answer.status, answer.error = 400, self._explain(msgspec.json.encode(chunk))
        answer.usage = chunk.get("usage") or answer.usage
        for choice in chunk.get("choices") or []:
            delta = choice.get("delta") or {}
            text, thought = delta.get("content") or "", delta.get("reasoning_content") or delta.get("reasoning") or ""
            answer.text += text
            answer.thought += thought
            answer.pieces += bool(text) + bool(thought)
            answer.finish = choice.get("finish_reason") or answer.finish

    def _explain(self, body: bytes) -> str:
        """The upstream's own sentence, wherever it puts it."""
        value: Any = decode(body)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, dict):
            error = value.get("error", value)
            value = error if isinstance(error, str) else (error or {}).get("message") or value.get("detail")
        return self.hide(value if isinstance(value, str) else body.decode(errors="replace"))

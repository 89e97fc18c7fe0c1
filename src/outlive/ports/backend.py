"""What the runner needs from a model: a stream of chunks, and the translator that understands them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Annotated, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Meta

from outlive.core.events import AnyDraft, Json
from outlive.core.recovery import OpenText
from outlive.core.requests.create import CreateResponse

ContinuationMode = Literal["none", "prefill", "continue_final_message", "prefix"]
Dialect = Literal["chat", "responses", "anthropic"]
# How the server counts tokens: by an endpoint beside the one that answers (llama.cpp), or by /tokenize (vLLM).
Tokenizer = Literal["none", "llamacpp", "vllm"]
OnChunks = Callable[[list[bytes]], bool]  # takes chunks on the spot; False: whoever listens wants its turn
ReasoningInput = Literal["any", "encrypted", "plain"]
Thinking = Literal["auto", "adaptive", "budget"]


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model is reached, and the quirks of its server."""

    name: str
    url: str  # base URL, up to and including /v1 or its equivalent
    dialect: Dialect = "chat"
    key: str | None = None
    key_header: Literal["authorization", "api-key", "x-api-key"] = "authorization"
    headers: dict[str, str] = {}
    query: dict[str, str] = {}
    models: dict[str, str] = {}  # alias -> the upstream's own name
    continuation: ContinuationMode = "none"
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    developer_role: bool = True  # False: `developer` messages are sent as `system`
    stream_options: bool = True  # False: the server refuses `stream_options`
    sends_store: bool = False  # True: the server knows `store`, and gets `store: false`
    default_max_tokens: Annotated[int, Meta(ge=1)] = 32_000  # if the API wants a limit and the caller gives none
    thinking: Thinking = "auto"  # how a model is told how much to think (Anthropic)
    reattach: bool = False  # True: runs go on in its background, and are taken up again (Responses)
    prompt_cache: bool = False  # True: prompts are cached without being asked (Anthropic)
    reasoning_input: ReasoningInput = "any"  # which reasoning the server takes back (Responses)
    any_model: bool = False  # True: every model name is answered by the one model there is (the embedded one)
    silence_seconds: Annotated[float, Meta(gt=0)] = 1800.0
    context_window: Annotated[int | None, Meta(ge=1)] = None  # tokens; None: what the server itself says
    tokenizer: Tokenizer = "none"


class ModelCall(msgspec.Struct, frozen=True):
    """What the model is asked: the request, and the whole context as sanitised items, oldest first."""

    model: str
    request: CreateResponse
    items: list[Json]
    resume: OpenText | None = None
    first: int = 0  # the output index of the first item that is to come
    # Of stepwise backends: waits until all that was said is durable; what the response holds by now, as it is kept; and
    # whose it is.
    settle: Callable[[], Awaitable[None]] | None = None
    own: Sequence[Json] = ()
    response_id: str = ""
    owner: str = ""


class Ending(msgspec.Struct, frozen=True):
    """How the upstream ended: with what status, and what it used."""

    status: Literal["completed", "incomplete"]
    reason: str | None = None  # for incomplete_details, e.g. "max_output_tokens"
    usage: Json | None = None  # in the shape of the Responses API
    model: str | None = None  # who really answered, as the upstream names it
    service_tier: str | None = None


class Translator(Protocol):
    """Turns one upstream stream into drafts. Pure; one instance per attempt."""

    def feed(self, chunk: bytes) -> list[AnyDraft]:
        """The drafts that one chunk (the payload of one upstream event) gives rise to.

        Raises UpstreamFault when the chunk says that the upstream failed.
        """
        ...

    def end(self) -> tuple[list[AnyDraft], Ending]:
        """The stream is over: the drafts that close what is open, and how it ended.

        Raises UpstreamFault when it stopped without a finish.
        """
        ...


class PassedAnswer(Protocol):
    """An answer that is passed through as it comes. Whoever has it reads `body` to its end, or closes it."""

    status: int
    headers: dict[str, str]

    def body(self) -> AsyncGenerator[bytes, None]: ...

    def close(self) -> None: ...


class BackgroundRuns(Protocol):
    """The runs of an upstream that go on without us, in its own background, and can be taken up again."""

    def submit(self, call: ModelCall) -> AsyncGenerator[list[bytes], None]:
        """Ask the model. The first chunks tell the upstream's id of the run, which `read_id` finds."""
        ...

    def follow(self, run_id: str) -> AsyncGenerator[list[bytes], None]:
        """All that a run has said, from its first chunk on, and will say. Raises LostRun when it is not there."""
        ...

    def read_id(self, chunks: list[bytes]) -> str | None: ...

    def dismiss(self, run_id: str, *, running: bool) -> None:
        """See to it, in its own time, that the upstream keeps no copy of a run; one that is running it must stop."""
        ...


class Backend(Protocol):
    """One upstream."""

    name: str
    continuation: ContinuationMode
    background_runs: BackgroundRuns | None  # None: its runs end with the connection
    # True: it makes its answer in several steps, and can go on after any that is finished, given what there is by then.
    stepwise: bool

    def check(self, request: CreateResponse) -> None:
        """Raise InvalidRequest, naming the parameter, for what this upstream cannot be sent."""
        ...

    def translator(self, call: ModelCall) -> Translator: ...

    def stream(self, call: ModelCall, on_chunks: OnChunks | None = None) -> AsyncGenerator[list[bytes], None]:
        """Ask the model. Each yield holds the chunks of one network read, so that one read is one write.

        A backend may give chunks to `hear` instead, in the moment they are read; after that has returned False it
        yields, with or without chunks, before it gives more. What `hear` raises comes out of the generator.
        """
        ...

    async def pass_through(self, body: Json) -> PassedAnswer:
        """Send a Chat Completions request as it is. Raises UpstreamFault when there is no answer to hand on."""
        ...

    async def models(self) -> list[Json]:
        """What the upstream lists, as OpenAI `Model` objects under the names that callers use."""
        ...

    async def count(self, call: ModelCall) -> int | None:
        """How many tokens the model would read; None when the upstream cannot say."""
        ...

    async def window(self, model: str) -> int | None:
        """How many tokens the model can hold, what it reads and what it writes together; None when nobody knows."""
        ...

    async def close(self) -> None: ...


# Finds the backend that serves a model, and the upstream's own name of the model. Raises InvalidRequest.
Route: TypeAlias = Callable[[str], tuple[Backend, str]]


class Backends(msgspec.Struct, frozen=True):
    """All backends of a server, by upstream."""

    by_name: dict[str, Backend]
    route: Route

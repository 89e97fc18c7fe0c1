"""The port of models: a backend streams the chunks of an answer, and its translator turns them into drafts."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Annotated, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Meta

from outlive.core.errors import InvalidRequest
from outlive.core.events import AnyDraft, Json
from outlive.core.recovery import OpenText
from outlive.core.requests.create import CreateResponse

ContinuationMode = Literal["none", "prefill", "continue_final_message", "prefix"]
Dialect = Literal["chat", "responses", "anthropic"]
OnChunks = Callable[[list[bytes]], bool]  # takes chunks as they are read; False: its caller must yield


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a model's server, and its quirks."""

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
    thinking: Literal["auto", "adaptive", "budget"] = "auto"  # the form in which the effort is sent (Anthropic)
    reattach: bool = False  # True: runs continue in its background mode, and are reattached after a crash (Responses)
    prompt_cache: bool = False  # True: prompts are cached even if the request does not ask (Anthropic)
    reasoning_input: Literal["any", "encrypted", "plain"] = "any"  # the reasoning that it accepts as input (Responses)
    any_model: bool = False  # True: every model name is answered by the one model there is (the embedded one)
    silence_seconds: Annotated[float, Meta(gt=0)] = 1800.0
    context_window: Annotated[int | None, Meta(ge=1)] = None  # tokens; None: ask the server
    # To count tokens: an endpoint beside the one that answers (llama.cpp), or /tokenize (vLLM).
    tokenizer: Literal["none", "llamacpp", "vllm"] = "none"
    unrunnable_tools: Literal["refuse", "leave_out"] = "leave_out"  # hosted tools, if it takes functions only
    proxy: str | None = None  # URL of the proxy on the way there, perhaps with a password; None: direct
    ca_file: str | None = None  # certificate authorities to trust besides those of the system
    client_cert: str | None = None  # this server's own certificate, if the upstream asks for one
    client_key: str | None = None  # None: it is in the file of the certificate


class ModelCall(msgspec.Struct, frozen=True):
    """One call of a model: the request, and the whole context as sanitised items, oldest first."""

    model: str
    request: CreateResponse
    items: list[Json]
    resume: OpenText | None = None
    first: int = 0  # the output index of the first item of the answer
    # For stepwise backends: a wait until all output so far is durable, the response's items so far as stored, its id,
    # its owner.
    settle: Callable[[], Awaitable[None]] | None = None
    own: Sequence[Json] = ()
    response_id: str = ""
    owner: str = ""
    headers: dict[str, str] = {}  # of the request to the upstream: its id and its trace
    large: bool = False  # too large to be rendered on the event loop


class Ending(msgspec.Struct, frozen=True):
    """The end of an answer: its status and its usage."""

    status: Literal["completed", "incomplete"]
    reason: str | None = None  # for incomplete_details, e.g. "max_output_tokens"
    usage: Json | None = None  # in the shape of the Responses API
    model: str | None = None  # the model that answered, by the upstream's name
    service_tier: str | None = None


class Translator(Protocol):
    """Turns one upstream stream into drafts. Pure; one instance per attempt."""

    def feed(self, chunk: bytes) -> list[AnyDraft]:
        """Return the drafts of one chunk, the payload of one event. Raises UpstreamFault for a reported failure."""

    def end(self) -> tuple[list[AnyDraft], Ending]:
        """Return, after the last chunk, the drafts that close what is open, and the end of the answer. Raises
        UpstreamFault for a stream that stopped without a finish."""

    def usage(self) -> Json | None:
        """Return the usage that the upstream has reported so far, in the shape of the Responses API; None before."""


class PassedAnswer(Protocol):
    """An answer that is passed through unchanged. Its receiver reads `body` to the end, or closes it."""

    status: int
    headers: dict[str, str]

    def body(self) -> AsyncGenerator[bytes, None]: ...

    def close(self) -> None: ...


class BackgroundRuns(Protocol):
    """Runs in an upstream's own background mode, which survive this server and can be reattached."""

    def submit(self, call: ModelCall) -> AsyncGenerator[list[bytes], None]:
        """Call the model. The first chunks hold the upstream's id of the run, which `read_id` finds."""

    def follow(self, run_id: str) -> AsyncGenerator[list[bytes], None]:
        """Stream a run from its first chunk on. Raises LostRun when the upstream does not have it."""

    def read_id(self, chunks: list[bytes]) -> str | None: ...

    def dismiss(self, run_id: str, *, running: bool) -> None:
        """Delete the upstream's copy of a run, in the background; a running one is stopped first."""


class Backend(Protocol):
    """One upstream. The defaults are those of a plain model without background mode, tokenizer or resources."""

    name: str
    continuation: ContinuationMode
    background_runs: BackgroundRuns | None = None  # None: its runs end with the connection
    # True: it makes its answer in several steps, and can continue after each finished one, given the items so far.
    stepwise: bool = False

    def check(self, request: CreateResponse) -> None:
        """Raise InvalidRequest, naming the parameter, for a request that this upstream cannot be sent."""
        return

    def find_left_out(self, request: CreateResponse) -> list[str]:
        """Return the types of the tools in a checked request that the model is not given."""
        return []

    def translator(self, call: ModelCall) -> Translator: ...

    def stream(self, call: ModelCall, on_chunks: OnChunks | None = None) -> AsyncGenerator[list[bytes], None]:
        """Call the model. Each yield holds the chunks of one network read, so that one read is one write.

        A backend may give chunks to `on_chunks` instead, in the moment they are read; after that has returned False it
        yields, with or without chunks, before it gives more. An exception of `on_chunks` leaves the generator.
        """

    async def pass_through(self, body: Json, headers: dict[str, str] | None = None) -> PassedAnswer:
        """Send a Chat Completions request as it is. Raises UpstreamFault when there is no answer."""

    async def models(self) -> list[Json]:
        """List the upstream's models, as OpenAI `Model` objects under the names that callers use."""

    async def count(self, call: ModelCall) -> int | None:
        """Count the tokens of a call's input; None when the upstream cannot."""
        return None

    async def window(self, model: str) -> int | None:
        """Return the tokens of the model's context window, input and output together; None when it is unknown."""
        return None

    async def close(self) -> None:
        """Release what the backend holds."""
        return


# Finds the backend that serves a model, and the upstream's own name of the model. Raises InvalidRequest.
Route: TypeAlias = Callable[[str], tuple[Backend, str]]


class Backends(msgspec.Struct, frozen=True):
    """All backends of a server, by upstream."""

    by_name: dict[str, Backend]
    route: Route
    models: frozenset[str] = frozenset()  # the names that the settings list: aliases and agents

    def check_items(self, items: list[Json]) -> None:
        """Raise InvalidRequest, naming it, for content of an item that no upstream here can be sent. Items of types
        that an upstream does not know are left out of its contexts, so they are kept."""
        for n, item in enumerate(items):
            request, refused = CreateResponse(model="", input=[item]), None
            for backend in self.by_name.values():
                try:
                    backend.check(request)
                except InvalidRequest as error:
                    refused = refused or error
                else:
                    break
            else:
                if refused is not None and refused.param not in (None, "input[0].type"):
                    param = str(refused.param).replace("input[0]", f"items[{n}]", 1)
                    raise InvalidRequest(refused.message, param=param, code=refused.code)

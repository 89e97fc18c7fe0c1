"""Plan of one call: its arguments, checked and divided into those for the SDK and those for this library, among them
the retry policy and the statistics."""

import random
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI, OpenAI, Timeout
from openai.types.responses import ResponseIncludable
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from typing_extensions import TypedDict

from outlive.client.errors import UNSUCCESSFUL, Token

AnyClient = OpenAI | AsyncOpenAI
KEY_HEADER = "Idempotency-Key"
CONNECT_SECONDS = 10.0
# Arguments of create that retrieve takes too.
SHARED = ("include", "extra_query", "timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Limits and delays of retries. The defaults outlast a restart or a deployment; the last three are for tests."""

    outage_seconds: float = 300.0
    """Give up when nothing has come through for this long."""
    contact_seconds: float = 15.0
    """The same limit for a submit to a server that has never answered: there may be none at that address."""
    first_delay: float = 0.25
    """Seconds before the first retry; doubled for each further retry that brings nothing."""
    longest_delay: float = 8.0
    jitter: Callable[[], float] = random.random
    """A number from 0 to 1. A delay lies between half and all of itself, so that many clients do not return at once."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Any] | None = None
    """`time.sleep` or `anyio.sleep` by default; for an AsyncOpenAI it must return an awaitable."""

    def delay(self, tries: int) -> float:
        longest = min(self.longest_delay, self.first_delay * 2.0 ** min(tries, 30))
        return longest * (0.5 + 0.5 * self.jitter())


@dataclass(slots=True)
class StreamStats:
    """Counters that are updated during a call. Pass one in to read it at any time, also after an error."""

    response_id: str | None = None  # set as soon as it is known
    polls: int = 0  # number of GETs that were answered
    resumes: int = 0  # number of times a stream was reopened after a break
    faults: int = 0  # number of errors that led to a retry
    resubmits: int = 0  # number of POSTs repeated under the same idempotency key
    outlive: bool = False  # True once the server has identified itself as an Outlive
    fell_back: bool = False  # True if a stream could not be resumed and the response was polled to its end instead


class RequestOptions(TypedDict, total=False):
    """Arguments of all calls: the SDK's, and this library's own."""

    extra_headers: Mapping[str, str] | None
    extra_query: Mapping[str, object] | None
    timeout: float | Timeout | None
    retry_policy: RetryPolicy | None
    stats: StreamStats | None


class ResumeParams(RequestOptions, total=False):
    """Keyword arguments of `resume`: those of `client.responses.retrieve`, except `stream` and `starting_after`."""

    include: list[ResponseIncludable]
    include_obfuscation: bool


class StreamParams(ResponseCreateParamsBase, RequestOptions, total=False):
    """Keyword arguments of `stream`: those of `client.responses.create`, except `stream`."""

    extra_body: object | None
    idempotency_key: str | None


class PollOptions(TypedDict, total=False):
    """This library's own arguments, for calls that poll."""

    poll_interval_seconds: float | None
    max_wait_seconds: float | None
    raise_on: Collection[str]


class PollParams(ResumeParams, PollOptions, total=False):
    """Keyword arguments of `poll`."""


class CreateAndPollParams(StreamParams, PollOptions, total=False):
    """Keyword arguments of `create_and_poll`."""


@dataclass(slots=True, kw_only=True)
class Plan:
    """One call: the arguments of the SDK's create and retrieve, and this library's own."""

    create: dict[str, Any] = field(default_factory=dict)
    retrieve: dict[str, Any] = field(default_factory=dict)
    token: Token | None = None  # of a response that exists already; None: it is to be created
    streamed: bool = False
    stored: bool = True
    may_be_outlive: bool = True
    interval: float | None = None
    max_wait: float | None = None
    raise_on: frozenset[str] = frozenset()
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    stats: StreamStats = field(default_factory=StreamStats)

    def retrieve_arguments(self, wait: float | None, timeout: float) -> dict[str, Any]:
        """Return the arguments of a GET. The wait is added to the timeout, because the server was asked to wait."""
        arguments = {name: value for name, value in self.retrieve.items() if name != "include_obfuscation"}
        if wait is not None:
            arguments["extra_query"] = {**(arguments.get("extra_query") or {}), "wait": f"{wait:.3f}"}
        given = arguments.get("timeout")  # the shorter of this and `timeout` counts
        if isinstance(given, Timeout):
            read = timeout if given.read is None else min(timeout, given.read)
            limit = Timeout(connect=given.connect, read=read + (wait or 0.0), write=given.write, pool=given.pool)
        else:
            seconds = timeout if given is None else min(timeout, given)
            limit = Timeout(seconds + (wait or 0.0), connect=min(seconds, CONNECT_SECONDS))
        return arguments | {"timeout": limit}


def plan_create(client: AnyClient, params: CreateAndPollParams | StreamParams, streamed: bool) -> Plan:
    arguments: dict[str, Any] = dict(params)
    plan = _take_options(client, arguments, streamed)
    key = arguments.pop("idempotency_key", None)
    if "stream" in arguments:
        raise TypeError("Leave out `stream`: stream() always streams, create_and_poll() never does.")
    plan.stored = arguments.get("store") is not False
    if streamed:
        arguments["stream"] = True
    if plan.stored or not streamed:
        arguments.setdefault("background", True)
    if not streamed and arguments["background"] is not True:
        raise ValueError("create_and_poll() runs in the background; for anything else use client.responses.create().")
    headers = dict(arguments.get("extra_headers") or {})
    keys = {name: headers.pop(name) for name in list(headers) if name.lower() == KEY_HEADER.lower()}
    plan.retrieve = {name: arguments[name] for name in SHARED if arguments.get(name) is not None}
    plan.retrieve["extra_headers"] = headers
    if plan.stored:  # a key finds only a stored response again
        if keys and key is not None:
            raise TypeError(f"The key is given twice: as idempotency_key and as the header {next(iter(keys))}.")
        keys = keys or {KEY_HEADER: key or f"outlive-{uuid.uuid4()}"}
    plan.create = arguments | {"extra_headers": headers | keys}
    obfuscation = (arguments.get("stream_options") or {}).get("include_obfuscation")
    if obfuscation is not None:
        plan.retrieve["include_obfuscation"] = obfuscation
    return plan


def plan_retrieve(client: AnyClient, response: Token | str, params: PollParams | ResumeParams, streamed: bool) -> Plan:
    arguments: dict[str, Any] = dict(params)
    plan = _take_options(client, arguments, streamed)
    for name in ("stream", "starting_after"):
        if name in arguments:
            raise TypeError(f"Leave out `{name}`: it is set from the token.")
    plan.token, plan.retrieve = Token.of(response), arguments
    if not plan.token.response_id:
        raise ValueError("The id of the response is empty.")
    plan.stats.response_id = plan.token.response_id
    return plan


def _take_options(client: object, arguments: dict[str, Any], streamed: bool) -> Plan:
    """Begin a plan with this library's own arguments, and remove them from `arguments`."""
    if not isinstance(client, OpenAI | AsyncOpenAI):
        raise TypeError(f"The client must be an OpenAI or an AsyncOpenAI, not a {type(client).__name__}.")
    plan = Plan(
        streamed=streamed,
        may_be_outlive=not f".{client.base_url.host}".endswith(".openai.com"),
        retry_policy=arguments.pop("retry_policy", None) or RetryPolicy(),
        stats=arguments.pop("stats", None) or StreamStats(),
    )
    if not streamed:
        for name in ("poll_interval_seconds", "max_wait_seconds"):
            if (seconds := arguments.get(name)) is not None and not 0 <= seconds < float("inf"):
                raise ValueError(f"{name} must be zero or a positive number of seconds, not {seconds!r}.")
        plan.interval = arguments.pop("poll_interval_seconds", None)
        plan.max_wait = arguments.pop("max_wait_seconds", None)
        raise_on = arguments.pop("raise_on", ())
        plan.raise_on = frozenset([raise_on] if isinstance(raise_on, str) else raise_on)
        if unknown := plan.raise_on.difference(UNSUCCESSFUL):
            raise ValueError(f"raise_on takes {', '.join(UNSUCCESSFUL)}, not {', '.join(sorted(unknown))}.")
    return plan

"""Policies: what owners may do, as the settings and the database have it, and what they have used of their limits."""

import logging
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from outlive.core.errors import Forbidden, InvalidRequest, NotFound, OverBudget, RateLimited, StorageUnavailable
from outlive.core.owners import Policy, RateState, name_of
from outlive.core.requests.create import CreateResponse, check_options
from outlive.core.usage import UsageRecord
from outlive.engine.usage import UsageMeter
from outlive.ports.clock import Clock
from outlive.ports.database import Statements

log = logging.getLogger(__name__)

# Seconds between two sums of what owners with a budget have spent on all nodes.
BUDGET_SECONDS = 10.0
MINUTE = 60.0

NO_POLICY = Policy()
NEVER_STORED = 'Nothing of this owner is stored: its policy has storage = "never"'


@dataclass(slots=True)
class Minute:
    """What an owner has asked for in one minute."""

    number: int  # unix time / 60
    requests: int = 0
    tokens: int = 0
    unsent: int = 0  # tokens that other nodes do not know of yet


@dataclass(eq=False)
class Policies:
    """Holds the policies of all owners, and checks requests by them. An owner without one costs a lookup."""

    active: dict[str, Policy]  # begins with those of the settings; kept up to date for the limits of slots, too
    _database: Statements
    _meter: UsageMeter
    _clock: Clock
    _shared: bool  # other nodes count as well
    _seen: dict[str, str] | None = None
    _minutes: dict[str, Minute] = field(default_factory=dict)
    _spent: dict[str, float] = field(default_factory=dict)  # of those with a budget, in this month
    _summed_at: float = -math.inf

    def __post_init__(self) -> None:
        self._given = dict(self.active)
        self._meter.watch = self.count

    async def refresh(self) -> None:
        """Read the policies of the database, whose keys win over those of the settings; share what was counted."""
        stored: dict[str, str] = dict(await self._database.fetch("list_policies"))
        if stored != self._seen:
            self._seen = stored
            merged = {name: _merge(self._given.get(name), stored.get(name)) for name in {**self._given, **stored}}
            self.active.clear()
            self.active.update(merged)
        limited = {name for name, policy in self.active.items() if policy.budget_per_month is not None}
        now = self._clock.monotonic()
        if limited - self._spent.keys() or (limited and now - self._summed_at > BUDGET_SECONDS):
            self._summed_at = now
            today = datetime.fromtimestamp(self._clock.now(), UTC)
            month = today.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()
            for name in sorted(limited):
                rows = await self._meter.report([], month, math.inf, name)
                self._spent[name] = sum(row["cost"] for row in rows)
        for name, minute in list(self._minutes.items()):
            if minute.unsent:
                await self._share(name, minute, 0)
            if self._clock.now() // MINUTE > minute.number + 1:
                del self._minutes[name]

    # -- checking requests

    def find(self, owner: str) -> Policy:
        return self.active.get(name_of(owner), NO_POLICY) if self.active else NO_POLICY

    def may_use(self, owner: str, model: str) -> bool:
        models = self.find(owner).models
        return models is None or model in models

    def check_model(self, owner: str, model: str) -> None:
        """Raise NotFound for a model that the owner may not use, as if there were none."""
        if not self.may_use(owner, model):
            message = f"The model '{model}' does not exist or you do not have access to it."
            raise NotFound(message, param="model", code="model_not_found")

    def stores(self, owner: str, request: CreateResponse) -> bool:
        """Return False if nothing of this owner is stored. Raises InvalidRequest for a request that needs it."""
        if self.find(owner).storage != "never":
            return True
        for param in ("background", "conversation"):
            if getattr(request, param):
                message = f"{NEVER_STORED}: leave out '{param}'. Every response is like one with `store: false`."
                raise InvalidRequest(message, param=param, code="unsupported_parameter")
        check_options(request.outlive, background=False, store=False)
        return False

    def check_conversation(self, owner: str) -> None:
        """Raise Forbidden if this owner may keep no conversations."""
        if self.find(owner).storage == "never":
            raise Forbidden(f"{NEVER_STORED}, so it has no conversations.", code="storage_not_allowed")

    async def admit(self, owner: str) -> RateState | None:
        """Count a request against the owner's limits. Raises RateLimited or OverBudget."""
        name, policy = name_of(owner), self.find(owner)
        budget, spent, currency = policy.budget_per_month, self._spent.get(name, 0.0), self._meter.prices.currency
        if budget is not None and spent >= budget:
            raise OverBudget(
                f"The budget of {budget:g} {currency} per month is used up: {spent:.2f} {currency} were spent since "
                "the first of this month (UTC)."
            )
        given = {"requests": policy.requests_per_minute, "tokens": policy.tokens_per_minute}
        limits = {kind: limit for kind, limit in given.items() if limit is not None}
        if not limits:
            return None
        minute = self._find_minute(name)
        _check_rate(self._measure(minute, limits))
        minute.requests += 1
        if self._shared:
            before = minute.requests
            await self._share(name, minute, 1)
            if minute.requests > before:  # other nodes have counted, too
                state = self._measure(minute, limits)
                _check_rate(state._replace(used=state.used | {"requests": minute.requests - 1}))
        return self._measure(minute, limits)

    def count(self, record: UsageRecord) -> None:
        """Count what a response used against its owner's limits."""
        name = name_of(record.owner)
        if self.find(record.owner).tokens_per_minute is not None:
            minute, tokens = self._find_minute(name), record.tokens.input + record.tokens.output
            minute.tokens += tokens
            minute.unsent += tokens * self._shared
        if name in self._spent and (price := self._meter.prices.find(record.model, record.upstream)) is not None:
            self._spent[name] += price.of(record.tokens)

    def _find_minute(self, name: str) -> Minute:
        number = int(self._clock.now() // MINUTE)
        minute = self._minutes.get(name)
        if minute is None or minute.number != number:
            minute = self._minutes[name] = Minute(number)
        return minute

    def _measure(self, minute: Minute, limits: dict[str, int]) -> RateState:
        left = (minute.number + 1) * MINUTE - self._clock.now()
        return RateState(max(left, 0.001), limits, {"requests": minute.requests, "tokens": minute.tokens})

    async def _share(self, name: str, minute: Minute, requests: int) -> None:
        """Add what was counted here to what all nodes have counted, and take their numbers."""
        unsent, minute.unsent = minute.unsent, 0
        try:
            rows = await self._database.change("count_minute", name, minute.number, requests, unsent)
        except StorageUnavailable:
            minute.unsent += unsent
            raise
        ((counted, tokens),) = rows
        minute.requests = max(minute.requests, counted)
        minute.tokens = tokens + minute.unsent


def _check_rate(state: RateState) -> None:
    if state.is_over():
        over = next(name for name, limit in state.limits.items() if state.used[name] >= limit)
        pause = math.ceil(state.seconds)
        message = f"Rate limit reached: {state.limits[over]} {over} per minute. Try again in {pause} s."
        raise RateLimited(message, pause, state.headers())


def _merge(given: Policy | None, stored: str | None) -> Policy:
    keys = {**(msgspec.to_builtins(given) if given is not None else {}), **msgspec.json.decode(stored or "{}")}
    try:
        return msgspec.convert(keys, Policy)
    except msgspec.ValidationError as error:
        # Written by a later version, or by hand: what it forbids must not become allowed.
        log.error("a policy in the database cannot be read: %s", error)
        return Policy(storage="never", models=[])

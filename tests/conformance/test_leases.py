"""The lease protocol against a model: workers that pause, die and come back, cancels and claims, in any order."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from outlive.core.errors import ConversationLocked, StaleFence
from outlive.core.events import is_last, split_frames
from outlive.ports.ledger import Claim, Lease
from tests.conformance.conftest import STORAGES
from tests.conformance.harness import STALE, WRITTEN, StorageHarness, entry


class Model:
    """The expected state of one response."""

    def __init__(self, conversation: str | None) -> None:
        self.conversation = conversation
        self.fence = 0
        self.holder: str | None = None
        self.attempts = 0
        self.events = 2
        self.status: str | None = None

    @property
    def held(self) -> bool:
        return self.holder is not None

    def take(self, worker: str, attempts: int) -> None:
        self.fence += 1
        self.attempts += attempts
        self.holder = worker


class Leases(RuleBasedStateMachine):
    """Any lease that was ever issued may be used at any time: only the fence decides whether it is valid."""

    storage = ""
    leases = Bundle("leases")
    workers = st.sampled_from(["w1", "w2", "w3"])

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.opened = STORAGES[self.storage](Path(self.folder.name))()
        self.harness = StorageHarness(self.run(self.opened.__aenter__()))
        self.models: dict[str, Model] = {}
        self.alive: set[str] = set()
        # Without heartbeats only the asking worker can be alive: at start all others are dead.
        self.has_heartbeats = self.run(self.harness.storage.inspector.set_alive("nobody", False))
        self.conversation = self.run(self.harness.converse())

    def teardown(self) -> None:
        self.run(self.opened.__aexit__(None, None, None))
        self.loop.close()
        self.folder.cleanup()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def is_current(self, lease: Lease) -> bool:
        model = self.models[lease.response_id]
        return model.status is None and model.fence == lease.fence

    # -- rules

    @rule(target=leases, worker=st.none() | workers, converses=st.booleans())
    def admit(self, worker: str | None, converses: bool) -> Any:
        conversation = self.conversation if converses else None
        locked = converses and any(m.conversation and m.status is None for m in self.models.values())
        try:
            work = self.harness.admit(worker=worker, conversation=conversation)
            response_id, admitted = self.run(work)
        except ConversationLocked:
            assert locked
            return multiple()
        assert not locked
        model = self.models[response_id] = Model(conversation)
        if worker is None:
            assert admitted.lease is None
            return multiple()
        model.take(worker, 1)
        assert admitted.lease.fence == model.fence
        return admitted.lease

    @rule(target=leases, worker=workers, limit=st.integers(1, 3))
    def claim(self, worker: str, limit: int) -> Any:
        waiting = [key for key, model in self.models.items() if model.status is None and not model.held]
        claims: list[Claim] = self.run(self.harness.claim(limit, worker=worker))
        assert [claim.lease.response_id for claim in claims] == waiting[:limit]
        for claim in claims:
            model = self.models[claim.lease.response_id]
            model.take(worker, 1)
            assert (claim.lease.fence, claim.attempts) == (model.fence, model.attempts)
        return multiple(*(claim.lease for claim in claims))

    @rule(target=leases, lease=leases, worker=workers)
    def take_over(self, lease: Lease, worker: str) -> Any:
        claim = self.run(self.harness.ledger.take_over(lease.response_id, worker))
        model = self.models[lease.response_id]
        if model.status is not None:
            assert claim is None
            return multiple()
        assert claim.was_queued is not model.held
        model.take(worker, 0)
        assert claim.lease.fence == model.fence
        return claim.lease

    @rule(some=st.lists(leases, max_size=4, unique_by=lambda lease: lease.response_id), count=st.integers(1, 3))
    def append(self, some: list[Lease], count: int) -> None:
        entries = [entry(lease, self.models[lease.response_id].events, count) for lease in some]
        kept = self.run(self.harness.ledger.append(entries)) if entries else []
        assert kept == [WRITTEN if self.is_current(lease) else STALE for lease in some]
        for lease, ok in zip(some, kept, strict=True):
            self.models[lease.response_id].events += count if ok is WRITTEN else 0

    @rule(lease=leases, status=st.sampled_from(["completed", "incomplete", "cancelled", "failed"]))
    def close(self, lease: Lease, status: Any) -> None:
        model, current = self.models[lease.response_id], self.is_current(lease)
        try:
            self.run(self.harness.close(lease, status=status, first=model.events))
        except StaleFence:
            assert not current
            return
        assert current
        model.status, model.events = status, model.events + 1

    @rule(lease=leases)
    def release(self, lease: Lease) -> None:
        current = self.is_current(lease)
        self.run(self.harness.ledger.release_leases([lease]))
        if current:
            model = self.models[lease.response_id]
            model.holder, model.attempts = None, max(model.attempts - 1, 0)

    @rule(worker=workers, alive=st.booleans())
    def beat(self, worker: str, alive: bool) -> None:
        """A heartbeat becomes valid or expires: that alone changes no lease."""
        self.run(self.harness.storage.inspector.set_alive(worker, alive))
        self.alive = self.alive | {worker} if alive else self.alive - {worker}

    @rule()
    def free(self) -> None:
        """Responses of dead workers are queued; their old leases stay valid until another worker claims them."""
        alive = self.alive if self.has_heartbeats else set()
        lost = [each for each in self.models.values() if each.status is None and each.held and each.holder not in alive]
        assert self.run(self.harness.ledger.free_dead_leases()) == len(lost)
        for model in lost:
            model.holder = None

    @rule(worker=workers, some=st.lists(leases, max_size=4, unique_by=lambda lease: lease.response_id))
    def confirm(self, worker: str, some: list[Lease]) -> None:
        """A worker that seemed dead keeps the leases that were not claimed meanwhile, and learns which it has lost."""
        models = [self.models[lease.response_id] for lease in some]
        ours = [
            self.is_current(lease) and model.holder in (worker, None) for lease, model in zip(some, models, strict=True)
        ]
        assert self.run(self.harness.ledger.confirm_leases(worker, some)) == ours
        for model, is_ours in zip(models, ours, strict=True):
            model.holder = worker if is_ours else model.holder

    # -- invariants

    @invariant()
    def the_waiting_are_counted(self) -> None:
        waiting = sum(model.status is None and not model.held for model in self.models.values())
        assert self.run(self.harness.ledger.count_queued()).get("ann", 0) == waiting

    @invariant()
    def journals_and_statuses_are_the_models(self) -> None:
        for response_id, model in self.models.items():
            frames = self.run(self.harness.events(response_id))
            assert len(split_frames(frames)) == model.events
            assert is_last(frames) == (model.status is not None)
            status = self.run(self.harness.storage.catalog.status("ann", response_id))
            assert status == (model.status or status)
            assert (status in ("queued", "in_progress")) == (model.status is None)


@pytest.mark.parametrize("storage", list(STORAGES))
def test_no_order_of_events_breaks_the_lease_protocol(storage: str) -> None:
    machine: Any = type("LeasesAt", (Leases,), {"storage": storage})
    case = machine.TestCase
    case.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
    case().runTest()

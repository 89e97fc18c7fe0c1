"""Budgets of bytes: each owner's requests wait for each other, and for no one else's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from outlive.engine.budget import ANSWER_BYTES, SMALL_ANSWER, ByteBudget, Reservation


def budget_test(test: Callable[[ByteBudget], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def go() -> None:
            async with asyncio.timeout(10):
                await test(ByteBudget(100))

        asyncio.run(go())

    run.__name__ = test.__name__
    return run


async def step() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@budget_test
async def test_a_request_that_does_not_fit_waits_for_its_turn(budget: ByteBudget) -> None:
    first = await budget.acquire("ann", 60)
    big, small = (asyncio.ensure_future(budget.acquire("ann", size)) for size in (50, 10))
    await step()
    assert not big.done()
    assert not small.done()  # although it would fit: otherwise a large one could wait for ever
    budget.release("ann", first)
    assert (await big, await small) == (50, 10)


@budget_test
async def test_owners_do_not_wait_for_each_other(budget: ByteBudget) -> None:
    await budget.acquire("ann", 100)
    assert await budget.acquire("bob", 100) == 100


@budget_test
async def test_more_than_the_budget_gets_all_of_it(budget: ByteBudget) -> None:
    held = await budget.acquire("ann", 1000)
    assert held == 100
    budget.release("ann", held)
    assert await budget.acquire("ann", 100) == 100


@budget_test
async def test_a_cancelled_wait_leaves_its_turn_to_the_next(budget: ByteBudget) -> None:
    await budget.acquire("ann", 60)
    big, small = (asyncio.ensure_future(budget.acquire("ann", size)) for size in (50, 10))
    await step()
    big.cancel()
    assert await small == 10


@budget_test
async def test_a_turn_that_came_with_the_cancel_is_given_back(budget: ByteBudget) -> None:
    first = await budget.acquire("ann", 100)
    waiting = asyncio.ensure_future(budget.acquire("ann", 100))
    await step()
    budget.release("ann", first)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await budget.acquire("ann", 100) == 100


# -- answers


def test_large_answers_count_until_they_are_released_and_small_ones_do_not_count() -> None:
    async def main() -> None:
        budget = ByteBudget(2 * ANSWER_BYTES)
        first, second, third = (Reservation(budget, "ann") for _ in range(3))
        for answer in (first, second):
            await answer.reserve()
        waiting = asyncio.create_task(third.reserve())
        await asyncio.sleep(0)
        assert not waiting.done()
        first.settle(SMALL_ANSWER)
        await waiting
        third.settle(3 * ANSWER_BYTES)  # larger than was assumed: it counts for what it holds
        second.settle(ANSWER_BYTES // 2)
        waiting = asyncio.create_task(first.reserve())
        await asyncio.sleep(0)
        assert not waiting.done()
        third.release()
        await waiting
        await Reservation(budget, "bob").reserve()

    asyncio.run(main())


def test_a_reservation_that_is_made_again_is_released_first() -> None:
    async def main() -> None:
        budget = ByteBudget(ANSWER_BYTES)
        answer = Reservation(budget, "ann")
        for _ in range(3):
            await answer.reserve()
            answer.settle(ANSWER_BYTES)
        answer.release()
        answer.release()
        await Reservation(budget, "ann").reserve()

    asyncio.run(main())

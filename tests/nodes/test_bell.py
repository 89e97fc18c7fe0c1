"""A bell may be lost without harm: readers on other nodes are at most a second late, and lose nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.crash.checker import check_ended
from tests.crash.client import event_of, text_of
from tests.crash.stories import tell, words
from tests.nodes.crew import Crew, Watch
from tests.support.upstream import HANG, FakeUpstream, text

# A look at the journal comes once a second; the rest is for a machine that is busy.
LATE = 1.0 + 0.75

# The connections that listen, by what they did last.
CUT_BELLS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND (query ILIKE 'LISTEN%' OR query LIKE '%pg_notify(%' OR query = 'SELECT 1')
   AND pid <> pg_backend_pid()
"""


@contextmanager
def no_bells(crew: Crew) -> Iterator[None]:
    """Cut every bell's line, again and again."""
    over = threading.Event()

    def cut() -> None:
        while not over.wait(0.15):
            crew.sql(CUT_BELLS)

    crew.sql(CUT_BELLS)
    thread = threading.Thread(target=cut)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_with_the_bell_a_reader_elsewhere_is_hardly_behind(trio: Crew, upstream: FakeUpstream) -> None:
    with trio[0].client.stream(upstream.model(tell(words(60), pause=0.01))) as here:
        here.read_type("response.created")
        with trio[1].client.follow(here.id) as there:
            threads = [here.read_behind(), there.read_behind()]
            for thread in threads:
                thread.join(20)
    assert there.frames == here.frames
    seen = {event_of(frame)["sequence_number"]: at for frame, at in zip(here.frames, here.times, strict=True)}
    lags = sorted(
        at - seen[event_of(frame)["sequence_number"]] for frame, at in zip(there.frames, there.times, strict=True)
    )
    # `make bench` says how little it really is; here other tests may run at the same time.
    assert lags[len(lags) // 2] < 0.1


def test_with_the_bell_dead_everything_goes_on_at_most_a_second_late(trio: Crew, upstream: FakeUpstream) -> None:
    story = words(15)
    model, silent = upstream.model(tell(story, pause=0.1)), upstream.model([text("Hel"), HANG])
    with no_bells(trio):
        here = trio[0].client.stream(model)
        here.read_type("response.created")
        there = trio[1].client.follow(here.id)
        threads = [here.read_behind(), there.read_behind()]

        with trio[0].client.stream(silent) as cancelled:
            cancelled.read_type("response.output_text.delta")
            watch = Watch()
            assert trio[2].client.ask("POST", f"/v1/responses/{cancelled.id}/cancel").body["status"] == "cancelled"
            upstream.wait_call(silent).wait_left(5)
            assert watch.seconds < LATE

        for thread in threads:
            thread.join(20)
    assert here.whole and there.whole
    assert there.frames == here.frames
    lags = [later - sooner for sooner, later in zip(here.times, there.times, strict=True)]
    assert max(lags) < LATE
    body = check_ended(trio[2].client, here.id, there.frames)
    assert text_of(body) == "".join(story)

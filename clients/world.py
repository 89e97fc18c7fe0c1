"""A live server on the scripted model, with a desk beside it: what every client of the matrix is tried against."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from clients.desk import Desk
from clients.model import Model
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream


class World(NamedTuple):
    server: OutliveServer
    desk: Desk


@contextmanager
def open_world(folder: Path, nested: bool = False) -> Iterator[World]:
    """`nested`: the server's upstream speaks Responses; it is another server like it, with the model behind that."""
    model = Model()
    with FakeUpstream() as upstream, ExitStack() as opened:
        upstream.otherwise = model.answer
        server = OutliveServer(folder, upstream.url)
        if nested:
            inner = opened.enter_context(OutliveServer(folder / "inner", upstream.url))
            server = OutliveServer(folder, inner.base_url, "--upstream-dialect", "responses")
        opened.enter_context(server)
        with Desk(upstream, model, server) as desk:
            yield World(server, desk)

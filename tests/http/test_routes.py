"""The search for a route finds what a search through the whole table finds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.errors import NotFound
from outlive.http.request import Reply
from outlive.http.routes import ROUTES, _compile, find_route

WORDS = [*sorted({word for route in ROUTES for word in route.path.split("/") if not word.startswith("{")}), "x", "a/b"]
METHODS = ["GET", "HEAD", "POST", "DELETE", "PUT"]
paths = st.lists(st.sampled_from(WORDS), max_size=6).map("/".join) | st.sampled_from([r.path for r in ROUTES])


def search(method: str, path: str) -> tuple[Any, dict[str, str]] | set[str]:
    """Return the route and its parameters, or the methods that the path has."""
    matching = [(route, match) for route in ROUTES if (match := _compile(route.path).fullmatch(path)) is not None]
    exact = [(route, match) for route, match in matching if route.path == path and route.method == method]
    wanted = "GET" if method == "HEAD" else method
    for route, match in exact + [each for each in matching if each[0].method == wanted]:
        return route, match.groupdict()
    return {route.method for route, _ in matching}


@given(st.sampled_from(METHODS), paths)
def test_the_search_for_a_route_finds_what_the_whole_table_has(method: str, path: str) -> None:
    request: Any = SimpleNamespace(scope={"method": method, "path": f"/{path.removeprefix('/')}"}, params={})
    expected = search(method, request.scope["path"])
    if isinstance(expected, tuple):
        found: Any = find_route(request)
        assert found is expected[0]
        assert request.params == {name: value for name, value in expected[1].items() if "{" in expected[0].path}
    elif expected:
        reply = find_route(request)
        assert isinstance(reply, Reply)
        assert reply.status == 405
        assert {*reply.headers["allow"].split(", ")} - {"HEAD"} <= expected
    else:
        with pytest.raises(NotFound):
            find_route(request)

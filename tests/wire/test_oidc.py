"""Tokens of an identity provider in place of keys: verified with its public keys, which rotate."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from outlive.http.oidc import PAUSE_SECONDS
from tests.support.http_client import HttpClient
from tests.support.issuer import AUDIENCE, Issuer, running_issuer
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream

ADDRESSES = itertools.count(1)


class Guarded(NamedTuple):
    server: OutliveServer
    issuer: Issuer

    def ask(self, token: str, path: str = "/v1/responses") -> Any:
        # From another address each time: after some wrong tokens, an address has to wait for its answers.
        with HttpClient(self.server.port, token) as http:
            return http.get(path, **{"X-Forwarded-For": f"198.51.100.{next(ADDRESSES)}"})


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, upstream: FakeUpstream) -> Iterator[Guarded]:
    folder: Path = tmp_path_factory.mktemp("oidc")
    with running_issuer() as issuer:
        table = f'[oidc]\nissuer = "{issuer.url}"\naudience = "{AUDIENCE}"\nowner_claim = "email"\n'
        (folder / "outlive.toml").write_text(table + '[keys]\nops = "a-key-of-the-settings"\n')
        with OutliveServer(folder, upstream.url, "--config", str(folder / "outlive.toml")) as server:
            yield Guarded(server, issuer)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_token_gives_its_owners_rights(guarded: Guarded, upstream: FakeUpstream, algorithm: str) -> None:
    tokens = [guarded.issuer.token(email=f"{who}@example.com", algorithm=algorithm) for who in ("anna", "bert", "anna")]
    with HttpClient(guarded.server.port, tokens[0]) as anna:
        made = anna.create(model=upstream.model(), input="Hi").json()
        assert anna.get("/v1/keys").status == 403
    found = [guarded.ask(token, f"/v1/responses/{made['id']}").status for token in tokens]
    assert found == [200, 404, 200]
    assert guarded.ask("a-key-of-the-settings").status == 200


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        ({"exp": int(time.time()) - 300}, "token_expired"),
        ({"aud": "another"}, "token_not_for_this_server"),
        ({"iss": "https://elsewhere.example"}, "token_not_for_this_server"),
        ({"exp": None}, "invalid_token"),
        ({"nbf": int(time.time()) + 3000}, "invalid_token"),
        ({"algorithm": "none"}, "invalid_token"),
        ({"algorithm": "HS256"}, "invalid_token"),
        ({"email": None}, "token_without_owner"),
        ({"email": ["a"]}, "token_without_owner"),
        ({"email": "a\x1fb"}, "token_without_owner"),
    ],
)
def test_a_token_that_is_not_valid_is_refused_with_its_reason(
    guarded: Guarded, claims: dict[str, Any], code: str
) -> None:
    answer = guarded.ask(guarded.issuer.token(**{"email": "anna@example.com"} | claims))
    assert (answer.status, answer.error["code"]) == (401, code)


def test_a_changed_token_is_refused(guarded: Guarded) -> None:
    head, body, signature = guarded.issuer.token(email="anna@example.com").split(".")
    other = guarded.issuer.token(email="bert@example.com").split(".")[1]
    for token in (f"{head}.{other}.{signature}", f"{head}.{body}.", "a.b.c", f"{head}.{body}"):
        assert guarded.ask(token).status == 401


def test_new_keys_are_fetched_once_and_tokens_of_dropped_keys_are_void(guarded: Guarded) -> None:
    old = guarded.issuer.token(email="anna@example.com")
    assert guarded.ask(old).status == 200
    time.sleep(PAUSE_SECONDS)
    guarded.issuer.rotate()
    new = guarded.issuer.token(email="anna@example.com")
    before = guarded.issuer.fetches()
    assert [guarded.ask(new).status for _ in range(3)] == [200, 200, 200]
    assert guarded.issuer.fetches() == before + 1
    assert [guarded.ask(old).status for _ in range(3)] == [401, 401, 401]
    assert guarded.issuer.fetches() == before + 1


def test_a_provider_that_cannot_be_reached_is_a_503(tmp_path: Path, upstream: FakeUpstream) -> None:
    with running_issuer() as issuer:
        token = issuer.token(sub="anna")
        (tmp_path / "outlive.toml").write_text(f'[oidc]\nissuer = "{issuer.url}"\naudience = "{AUDIENCE}"\n')
    with OutliveServer(tmp_path, upstream.url, "--config", str(tmp_path / "outlive.toml")) as server:
        with HttpClient(server.port, token) as http:
            answer = http.get("/v1/responses")
            assert (answer.status, answer.error["code"]) == (503, "identity_unavailable")
            assert answer.headers["retry-after"] == "5"
        assert server.client.get("/v1/responses").status == 401

"""The client's address is what the nearest proxies say, and nothing that the client itself could have sent."""

from __future__ import annotations

import pytest

from outlive.http.security import SecurityLog, group

BEHIND_PROXIES = SecurityLog(["10.0.0.0/8", "::1"])


@pytest.mark.parametrize(
    ("peer", "headers", "client"),
    [
        ("10.0.0.1", {}, "10.0.0.1"),
        ("10.0.0.1", {"x-forwarded-for": "9.9.9.9"}, "9.9.9.9"),
        ("10.0.0.1", {"x-forwarded-for": "1.1.1.1, 9.9.9.9, 10.0.0.2"}, "9.9.9.9"),
        ("10.0.0.1", {"x-forwarded-for": "1.1.1.1, junk, 10.0.0.2"}, "10.0.0.2"),
        ("10.0.0.1", {"x-forwarded-for": "9.9.9.9:1234"}, "9.9.9.9"),
        ("10.0.0.1", {"x-forwarded-for": "[2001:db8::1]:1234"}, "2001:db8::1"),
        ("10.0.0.1", {"forwarded": 'for=1.1.1.1, for="[2001:db8::1]:80";proto=https'}, "2001:db8::1"),
        ("10.0.0.1", {"forwarded": "for=_hidden"}, "10.0.0.1"),
        ("::ffff:10.0.0.1", {"x-forwarded-for": "9.9.9.9"}, "9.9.9.9"),
        ("::1", {"x-forwarded-for": "10.0.0.7"}, "10.0.0.7"),
        ("9.9.9.9", {"x-forwarded-for": "1.1.1.1", "forwarded": "for=1.1.1.1"}, "9.9.9.9"),
        ("10.0.0.1", {"x-forwarded-for": "9" * 60_000}, "10.0.0.1"),
        ("", {"x-forwarded-for": "1.1.1.1"}, ""),
    ],
)
def test_the_client_is_the_last_address_that_is_no_proxy(peer: str, headers: dict[str, str], client: str) -> None:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert BEHIND_PROXIES.find_address({"client": (peer, 1), "headers": pairs}) == client


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("9.9.9.9", "9.9.9.9"),
        ("::ffff:9.9.9.9", "9.9.9.9"),
        ("2001:db8:0:1:aaaa::1", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:bbbb::2", "2001:db8:0:1::/64"),
        ("", ""),
    ],
)
def test_a_network_of_ipv6_counts_as_one_address(address: str, counted: str) -> None:
    assert group(address) == counted

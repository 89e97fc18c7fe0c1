"""Proxies of the environment: which addresses are reached through which."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlive.config.load import load
from outlive.config.network import find_proxy, hide_password
from outlive.core.errors import SettingsError
from tests.support.certificates import Authority

PROXY = "http://proxy.example.com:3128"


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        ("https://api.example.com/v1", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://api.example.com/v1", {"https_proxy": PROXY}, PROXY),
        ("https://api.example.com/v1", {"https_proxy": PROXY, "HTTPS_PROXY": "http://other"}, PROXY),
        ("https://api.example.com/v1", {"HTTP_PROXY": PROXY}, None),
        ("http://api.example.com/v1", {"HTTP_PROXY": PROXY, "HTTPS_PROXY": "http://other"}, PROXY),
        ("http://api.example.com/v1", {"HTTP_PROXY": "proxy.example.com:3128"}, PROXY),
        ("http://api.example.com/v1", {"HTTP_PROXY": "  "}, None),
        ("http://localhost:11434/v1", {"HTTP_PROXY": PROXY}, None),
        ("http://127.0.0.1:8080/v1", {"HTTP_PROXY": PROXY}, None),
        ("http://[::1]:8080/v1", {"HTTP_PROXY": PROXY}, None),
    ],
)
def test_an_address_is_reached_through_the_proxy_of_its_scheme(
    url: str, environ: dict[str, str], proxy: str | None
) -> None:
    assert find_proxy(url, environ) == proxy


@pytest.mark.parametrize(
    ("url", "no_proxy", "direct"),
    [
        ("https://gpu.example.com/v1", "example.com", True),
        ("https://gpu.example.com/v1", ".example.com", True),
        ("https://gpu.example.com/v1", "*.example.com", True),
        ("https://GPU.example.com./v1", "one.com, gpu.Example.com", True),
        ("https://gpu.example.com/v1", "one.com gpu.example.com", True),
        ("https://example.com/v1", "gpu.example.com", False),
        ("https://notexample.com/v1", "example.com", False),
        ("https://gpu.example.com/v1", "*", True),
        ("https://gpu.example.com/v1", "gpu.example.com:443", True),
        ("https://gpu.example.com:8443/v1", "gpu.example.com:443", False),
        ("https://10.1.2.3/v1", "10.0.0.0/8", True),
        ("https://11.1.2.3/v1", "10.0.0.0/8", False),
        ("https://10.1.2.3/v1", "10.1.2.3", True),
        ("https://10.1.2.3:8443/v1", "10.1.2.3:8443", True),
        ("https://[fd00::1]/v1", "fd00::/8", True),
        ("https://[fd00::1]:8443/v1", "[fd00::1]:8443", True),
        ("https://gpu.example.com/v1", "10.0.0.0/8, ,.", False),
        ("https://gpu.example.com/v1", "", False),
    ],
)
def test_no_proxy_names_domains_addresses_networks_and_ports(url: str, no_proxy: str, direct: bool) -> None:
    assert find_proxy(url, {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}) == (None if direct else PROXY)
    assert find_proxy(url, {"HTTPS_PROXY": PROXY, "no_proxy": no_proxy}) == (None if direct else PROXY)


@pytest.mark.parametrize("value", ["socks5://me:s3cret@proxy:1080", "http://", "http://me:s3cret@proxy:port"])
def test_a_proxy_that_cannot_be_used_is_refused_without_its_password(value: str) -> None:
    for variables in ({"HTTPS_PROXY": value, "OUTLIVE_UPSTREAM": "https://x.org/v1"}, {"https_proxy": value}):
        with pytest.raises(SettingsError, match="HTTPS_PROXY must be a URL such as") as refused:
            load({"mcp_proxy": True}, variables)
        assert "s3cret" not in refused.value.message


def test_upstreams_get_their_proxies_and_show_no_password() -> None:
    settings = load({"upstream": "https://x.org/v1"}, {"HTTPS_PROXY": "http://me:s3cret@proxy:3128"})
    assert settings.upstreams[0].proxy == "http://me:s3cret@proxy:3128"
    assert "s3cret" not in repr(settings)
    assert hide_password("http://me:s3cret@proxy:3128/") == "http://***@proxy:3128"
    assert hide_password("http://proxy:3128") == "http://proxy:3128"


def read(folder: Path, **files: object) -> str:
    """Return the error message of settings with these files for TLS; "" if there is none."""
    config, fields = (
        folder / "outlive.toml",
        {"url": "https://x.org/v1"} | {key: str(each) for key, each in files.items()},
    )
    config.write_text("[upstreams.lab]\n" + "".join(f'{key} = "{value}"\n' for key, value in fields.items()))
    try:
        upstream = load({"config": str(config)}, {}).upstreams[0]
    except SettingsError as error:
        return error.message
    assert (upstream.ca_file, upstream.client_cert) == (fields.get("ca_file"), fields.get("client_cert"))
    return ""


def test_files_of_certificates_are_checked_when_settings_are_read(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.sign("client")
    both = tmp_path / "both.pem"
    both.write_bytes(cert.read_bytes() + key.read_bytes())
    assert read(tmp_path, ca_file=authority.file, client_cert=cert, client_key=key) == ""
    assert read(tmp_path, client_cert=both) == ""
    for wrong in ({"ca_file": key}, {"client_cert": cert}, {"client_cert": cert, "client_key": authority.sign("b")[1]}):
        assert "cannot be used: one is not PEM, or the key does not belong" in read(tmp_path, **wrong)
    assert "[upstreams.lab] (ca_file) cannot be used: No such file" in read(tmp_path, ca_file=tmp_path / "absent")
    assert "client_key in [upstreams.lab] needs client_cert" in read(tmp_path, client_key=key)
    assert "need a url that begins with https" in read(tmp_path, url="http://x.org/v1", ca_file=authority.file)

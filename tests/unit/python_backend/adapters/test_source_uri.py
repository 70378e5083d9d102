"""Which URIs and addresses the settings allow."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from python_backend.adapters.source_uri import Rules
from python_backend.errors import InvalidArgument
from python_backend.source_settings import CredentialsError, SourceSettings, read_credentials

ALLOW = ("s3://models/fin", "gs", "hf://acme", "https://web.example/lora/", "http://10.0.0.1:8080")


@pytest.mark.parametrize(
    "uri",
    [
        "s3://models/fin", "s3://models/fin/", "s3://models/fin/risk_v1", "gs://any/thing",
        "hf://acme/adapters@main/risk", "https://web.example/lora/x", "http://10.0.0.1:8080/x",
        "https://WEB.example:443/lora",
    ],
)  # fmt: skip
def test_allowed(uri: str) -> None:
    remote = Rules(ALLOW).remote(uri)
    assert remote.uri == uri.rstrip("/") and remote.path in uri


@pytest.mark.parametrize(
    "uri",
    [
        "s3://models", "s3://models/finance/x", "s3://models/other", "s3://other/fin/x",
        "s3://models/fin/../hr", "s3://models/fin/%2e%2e/hr", "s3://models/fin/..%2fhr",
        "hf://acme-evil/x", "https://web.example/lorax", "https://web.example:444/lora",
        "https://web.example.evil/lora", "http://web.example/lora", "http://10.0.0.1/x",
        "https://web.example/lora/../x", "https://web.example/lora\\..\\x", "https:///lora",
        "https://web.example/lora/ x", "https://web.example/lora/\n", "gs:any", "gs://",
        "file:///etc", "ftp://x/y", "memory://x", "https://web.example:port/lora",
        "https://web.example/lora/é", "gs://" + "x" * 3000,
    ],
)  # fmt: skip
def test_not_allowed(uri: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Rules(ALLOW).remote(uri)
    assert "not allowed by settings" in caught.value.message
    assert uri not in caught.value.message


@pytest.mark.parametrize(
    ("uri", "mentions"),
    [
        ("https://user:pw@web.example/lora", "credentials_file"),
        ("https://web.example/lora?sig=x", "no query"),
        ("https://web.example/lora#x", "no fragment"),
        ("gs://any/thing?x", "no query"),
    ],
)
def test_no_credentials_in_a_uri(uri: str, mentions: str) -> None:
    with pytest.raises(InvalidArgument, match=mentions) as caught:
        Rules(ALLOW).remote(uri)
    assert "pw" not in caught.value.message


def test_nothing_is_allowed_by_default() -> None:
    with pytest.raises(InvalidArgument):
        Rules(SourceSettings().allow).remote("s3://models/fin")


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254", "fe80::1", "fe80::1%eth0", "::ffff:169.254.169.254", "fd00:ec2::254",
        "100.100.100.200", "168.63.129.16", "127.0.0.1", "::1", "0.0.0.0", "224.0.0.1", "240.0.0.1",
    ],
)  # fmt: skip
def test_where_https_must_not_lead(address: str) -> None:
    assert not Rules(["https"]).may_connect("https", "web.example", address)
    assert not Rules(["https", "https://other.example"]).may_connect("https", "a.b", address)
    # A host that is named may lie anywhere.
    assert Rules(["https://web.example"]).may_connect("https", "Web.example", address)
    if "%" not in address:
        host = f"[{address}]" if ":" in address else address
        with pytest.raises(InvalidArgument):
            Rules(["https"]).remote(f"https://{host}/x")
        assert Rules([f"https://{host}/x"]).remote(f"https://{host}/x")


def test_where_it_may_lead() -> None:
    assert Rules(["https"]).may_connect("https", "web.example", "93.184.216.34")
    assert Rules(["https"]).may_connect("https", "web.example", "10.1.2.3")
    assert Rules(["http"]).may_connect("http", "localhost", "127.0.0.1")
    assert not Rules(["http"]).may_connect("http", "web.example", "10.1.2.3")


@pytest.mark.parametrize(
    "entry", ["file", "ftp://x", "https:/x", "https://user@x", "https://x?y", "", "s3:/x"]
)
def test_bad_settings(entry: str) -> None:
    with pytest.raises(ValidationError):
        SourceSettings(allow=(entry,))


@pytest.mark.parametrize(
    ("text", "mode", "mentions"),
    [
        ("s3: {key: hidden}", 0o644, "chmod 600"),
        ("s3: {passwort: hidden}", 0o600, "s3"),
        ("s3: [hidden]", 0o600, "s3"),
        ("azure: {key: hidden}", 0o600, "azure"),
        ("[hidden", 0o600, "YAML"),
    ],
)
def test_bad_credentials(tmp_path: Path, text: str, mode: int, mentions: str) -> None:
    path = tmp_path / "c"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(CredentialsError) as caught:
        read_credentials(path)
    assert mentions in str(caught.value) and "hidden" not in str(caught.value)


def test_good_credentials(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_text("s3: {key: hidden, secret: hidden}\nhf: {token: hidden}")
    path.chmod(0o600)
    found = read_credentials(path)
    assert found.s3["key"] == "hidden" and "hidden" not in repr(found)
    assert read_credentials(None).s3 == {}
    with pytest.raises(CredentialsError):
        read_credentials(tmp_path / "none")

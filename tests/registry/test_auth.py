"""Credentials: challenges typed by hand, signatures verified by the cryptography package, key file modes."""

import base64
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from yarl import URL

from ftd.errors import CorruptData, TransferError, Unauthorized
from ftd.registry.auth import (
    Authorizer,
    Challenge,
    SigningKey,
    load_credentials,
    login_hint,
    make_nonce,
    parse_challenge,
    parse_token,
    token_url,
)

REGISTRY = URL("https://r.example/")
# base64 of the text "e3b0c442…b855", the hex sha256 of nothing: typed from `printf '' | sha256sum`.
EMPTY = base64.b64encode(b"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855").decode()


@pytest.mark.parametrize(
    ("header", "challenge"),
    [
        (
            'Bearer realm="https://r.example/token",service="s",scope="repository:a/b:pull"',
            Challenge("bearer", "https://r.example/token", "s", "repository:a/b:pull"),
        ),
        ('bearer Realm="x" , scope="a b"', Challenge("bearer", "x", "", "a b")),
        ("Bearer realm=x,service=y", Challenge("bearer", "x", "y")),
        (r'Basic realm="say \"hi\", now"', Challenge("basic", 'say "hi", now')),
        ("Basic", Challenge("basic")),
    ],
)
def test_a_challenge_is_parsed(header: str, challenge: Challenge) -> None:
    assert parse_challenge(header) == challenge


@pytest.mark.parametrize("header", ["", "Negotiate abc", "Digest realm=x", "\0"])
def test_an_unknown_challenge_is_refused(header: str) -> None:
    with pytest.raises(Unauthorized):
        parse_challenge(header)


def test_the_token_url_is_sorted_and_has_one_scope_for_each_word() -> None:
    challenge = Challenge(
        "bearer", "https://r.example/v2/token", "my service", "repository:a/b:pull repository:c/d:push"
    )
    url = token_url(challenge, REGISTRY, 1700000000.9, "no-nce")
    assert str(url) == (
        "https://r.example/v2/token?nonce=no-nce&scope=repository%3Aa%2Fb%3Apull&scope=repository%3Ac%2Fd%3Apush"
        "&service=my%20service&ts=1700000000"
    )


@pytest.mark.parametrize(
    ("realm", "reason"),
    [
        (
            "https://evil.example/token",
            'realm host "evil.example:443" does not match original host "r.example:443"',
        ),
        ("https://r.example:8443/token", "does not match"),
        ("https://r.example.evil.example/", "does not match"),
        ("http://r.example:443/token", "not encrypted"),
        ("", "invalid realm"),
        ("/token", "invalid realm"),
        ("file:///etc/passwd", "invalid realm"),
    ],
)
def test_a_realm_elsewhere_gets_nothing(realm: str, reason: str) -> None:
    with pytest.raises(TransferError, match=reason):
        token_url(Challenge("bearer", realm), REGISTRY, 0, "n")


def test_a_nonce_is_sixteen_bytes_and_new_each_time() -> None:
    first, second = make_nonce(), make_nonce()
    assert (len(base64.urlsafe_b64decode(first + "==")), first != second) == (16, True)


def test_a_signature_verifies_with_the_public_file(tmp_path: Path) -> None:
    header = SigningKey(tmp_path).sign_token_request("https://r.example/token?ts=1")
    blob, signature = header.split(":")
    line = (tmp_path / "id_ed25519.pub").read_text()
    assert line == f"ssh-ed25519 {blob}\n"
    public = load_ssh_public_key(line.encode())
    public.verify(base64.b64decode(signature), f"GET,https://r.example/token?ts=1,{EMPTY}".encode())  # type: ignore


def test_the_key_is_made_once_and_private(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert SigningKey(folder).public_blob() == SigningKey(folder).public_blob()
    assert stat.S_IMODE((folder / "id_ed25519").stat().st_mode) == 0o600
    assert sorted(path.name for path in folder.iterdir()) == ["id_ed25519", "id_ed25519.pub"]


def test_a_broken_key_file_is_an_error_and_stays(tmp_path: Path) -> None:
    (tmp_path / "id_ed25519").write_text("not a key")
    with pytest.raises(CorruptData, match="not an OpenSSH private key"):
        SigningKey(tmp_path).public_blob()
    assert (tmp_path / "id_ed25519").read_text() == "not a key"


def test_credentials_come_from_a_file_as_docker_writes_it(tmp_path: Path) -> None:
    assert load_credentials(tmp_path) == {}
    (tmp_path / "auth.json").write_text('{"auths":{"R.example:5000":{"auth":"dTpw"}},"other":1}')
    assert load_credentials(tmp_path) == {"r.example:5000": "dTpw"}


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"auths":[]}', '{"auths":{"h":{}}}', '{"auths":{"h":{"auth":"ä"}}}']
)
def test_a_broken_credentials_file_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "auth.json").write_text(text)
    with pytest.raises(CorruptData, match=r"auth\.json"):
        load_credentials(tmp_path)


def test_configured_credentials_replace_the_signature(tmp_path: Path) -> None:
    authorizer = Authorizer(SigningKey(tmp_path), {"r.example": "dTpw"})
    challenge = Challenge("bearer", "https://r.example/token")
    assert [header for _, header in authorizer.token_requests(challenge, REGISTRY)] == ["Basic dTpw"]
    anonymous = Authorizer(SigningKey(tmp_path), {"other.example": "dTpw"})
    headers = [header for _, header in anonymous.token_requests(challenge, REGISTRY)]
    assert headers[0] is not None
    assert headers[1:] == [None]


def test_credentials_of_another_port_are_not_used(tmp_path: Path) -> None:
    authorizer = Authorizer(SigningKey(tmp_path), {"r.example:5000": "dTpw"})
    assert authorizer.basic(URL("https://r.example/")) is None
    assert authorizer.basic(URL("https://r.example:5000/")) == "Basic dTpw"


@pytest.mark.parametrize("body", [b'{"token":"t","access_token":"x"}', b'{"access_token":"t"}'])
def test_a_token_is_read_under_both_its_names(body: bytes) -> None:
    assert parse_token(body) == "t"


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"token":3}', b'{"token":"a\\r\\nb: c"}', b"\xff"])
def test_an_answer_without_a_usable_token_is_refused(body: bytes) -> None:
    with pytest.raises(TransferError, match="token"):
        parse_token(body)


def test_the_hint_to_log_in_names_the_file_and_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FTD_HOME", str(tmp_path))
    said, _, path = login_hint().removesuffix(", as docker login does").partition(" into ")
    example = said.removeprefix("write ").replace("base64 of user:password", "dTpw")
    Path(path).write_text(example)
    assert Path(path).parent == tmp_path
    assert load_credentials(tmp_path) == {"host:port": "dTpw"}

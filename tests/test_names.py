"""Names and digests, checked against the vectors of the conformance reference (section 2), typed by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftd.errors import InvalidDigest, InvalidName
from ftd.names import ModelName, parse_digest, parse_name

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "full", "display"),
    [
        ("m", "registry.ollama.ai/library/m:latest", "m:latest"),
        (" m ", "registry.ollama.ai/library/m:latest", "m:latest"),
        ("m:t", "registry.ollama.ai/library/m:t", "m:t"),
        ("ns/m", "registry.ollama.ai/ns/m:latest", "ns/m:latest"),
        ("h:5000/ns/m:t", "h:5000/ns/m:t", "h:5000/ns/m:t"),
        ("h/library/m", "h/library/m:latest", "h/library/m:latest"),
        ("http://host:1/ns/m:t", "host:1/ns/m:t", "host:1/ns/m:t"),
        ("_why/_the/_lucky:_stiff", "_why/_the/_lucky:_stiff", "_why/_the/_lucky:_stiff"),
        ("registry.ollama.ai/library/m:t", "registry.ollama.ai/library/m:t", "m:t"),
        ("Qwen3.5-MoE:30B-a3b", "registry.ollama.ai/library/Qwen3.5-MoE:30B-a3b", "Qwen3.5-MoE:30B-a3b"),
        ("m" * 80, f"registry.ollama.ai/library/{'m' * 80}:latest", f"{'m' * 80}:latest"),
    ],
)
def test_a_name_gets_its_defaults_and_its_shortest_form(text: str, full: str, display: str) -> None:
    name = parse_name(text)
    assert (name.full, name.display) == (full, display)
    assert parse_name(name.display).full == full


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "mm:",
        ":t",
        "/nn/mm",
        "//mm",
        "hh//",
        "hh/nn/",
        "@t",
        "m@d",
        "^",
        "-hh/nn/mm:tt",
        "hh/nn/mm:-tt",
        "host/name:space/model:tag",
        "a/b/c/d",
        "hf.co/x",
        "../x",
        "..",
        "a/../b",
        "m:..",
        "m:a/b",
        "m\nn",
        "m\x00",
        "m" * 81,
        f"m:{'t' * 81}",
        f"{'n' * 81}/m",
        f"{'h' * 351}/n/m",
        "ｍ",
        "m٣",
        "ftp://h/n/m",
        "é",
        "m:latest@sha256:" + HEX,
        "sha256:../../x",
    ],
)
def test_an_illegal_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        parse_name(text)


def test_names_that_differ_in_case_share_a_key() -> None:
    assert parse_name("NS/Model:Tag").key == parse_name("ns/model:tag").key


def test_the_scheme_is_kept_and_https_by_default() -> None:
    assert [parse_name("http://h/n/m").scheme, parse_name("m").scheme] == ["http", "https"]


def test_a_tag_can_be_exchanged_but_not_for_an_illegal_one() -> None:
    assert parse_name("m").with_tag("8b").display == "m:8b"
    with pytest.raises(InvalidName):
        parse_name("m").with_tag("../x")


@settings(deadline=None)
@given(st.text(alphabet="aZ0_.:-/@% \\\n\0é", max_size=40))
def test_no_accepted_name_leads_out_of_a_folder(text: str) -> None:
    try:
        name = parse_name(text)
    except InvalidName:
        return
    for part in (name.host, name.namespace, name.model, name.tag):
        assert part not in ("", ".", "..")
        assert not set(part) & set("/\\\0\n %")
        assert not part.startswith((".", "-"))


@settings(deadline=None)
@given(st.from_regex(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,9}", fullmatch=True))
def test_every_legal_model_round_trips(text: str) -> None:
    assert parse_name(ModelName("h:1", "n", text, text).full) == ModelName("h:1", "n", text, text)


def test_a_digest_is_returned_unchanged() -> None:
    assert parse_digest(f"sha256:{HEX}") == f"sha256:{HEX}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sha256:",
        HEX,
        f"sha256-{HEX}",
        f"sha512:{HEX}",
        f"sha256:{HEX[:-1]}",
        f"sha256:{HEX}0",
        f"sha256:{HEX.upper()}",
        f"sha256:{HEX[:-1]}g",
        f"sha256:{HEX}\n",
        f" sha256:{HEX}",
        f"SHA256:{HEX}",
        "sha256:../../../../etc/passwd",
        f"sha256:{'../' * 21}x",
        f"sha256:{HEX[:-1]}\x00",
        "sha256:" + "٣" * 64,
    ],
)
def test_a_digest_in_any_other_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidDigest, match="invalid digest format"):
        parse_digest(text)


@pytest.mark.parametrize("value", [None, 3, b"sha256:" + HEX.encode()])
def test_a_digest_that_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(InvalidDigest):
        parse_digest(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Bad Name!!", "model 'Bad Name!!' is not allowed: use letters, digits, _ . -"),
        ("a.b/c", "namespace 'a.b'"),
    ],
)
def test_a_refusal_says_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(InvalidName) as caught:
        parse_name(text)
    assert caught.value.hint is not None and said in caught.value.hint

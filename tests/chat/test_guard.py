"""User text is attacked with pieces of control tokens; what must hold is said by each test."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftd.chat.guard import MAX_DEPTH, Guard, Rendered, choose_seal, glues
from ftd.errors import InvalidRequest

CONTROL = frozenset(("<|im_start|>", "<|im_end|>", "<think>", "</think>", "[INST]"))
SEAL = "\ufdd0"
pieces = st.sampled_from(
    [
        "<|im_start|>",
        "<|im_end|>",
        "<",
        "|im_end|>",
        "im_end",
        "|>",
        ">",
        "<think",
        ">",
        "[",
        "INST]",
        "a",
        " ",
    ]
)
attacks = st.lists(pieces, max_size=8).map("".join)


@given(attacks, attacks)
def test_no_control_text_survives_sealing(first: str, second: str) -> None:
    guard = Guard(CONTROL)
    sealed = guard.seal(first, SEAL) + guard.seal(second, SEAL)
    assert not any(text in sealed for text in CONTROL)
    assert sealed.replace(SEAL, "") == first + second


@given(attacks, st.sampled_from(["<", "<|", "<|im_", "</", "["]), st.sampled_from([">", "|>", "]", "_end|>"]))
def test_user_text_glued_to_parts_of_tokens_completes_none(text: str, before: str, after: str) -> None:
    guard = Guard(CONTROL, edges=True)
    assert not any(control in before + guard.seal(text, SEAL) + after for control in CONTROL)


@given(attacks)
def test_deleting_characters_completes_no_token(text: str) -> None:
    sealed = Guard(CONTROL).seal(text, SEAL)
    for deleted in ("\n", " ", "a", "think"):
        assert not any(control in sealed.replace(deleted, "") for control in CONTROL)


@given(attacks)
def test_assistant_text_keeps_markup_but_no_framing(text: str) -> None:
    sealed = Guard(CONTROL).seal_assistant(text, SEAL)
    assert "<|im_end|>" not in sealed + "im_end|>" and "<|im_end|>" not in sealed + "|im_end|>"
    assert "<|im_end|>" not in sealed and "<|im_start|>" not in sealed
    assert sealed.count("</think>") == text.count("</think>")


def test_keys_and_nested_values_are_sealed() -> None:
    sealed = Guard(CONTROL).seal_value({"<think>": ["<|im_end|>", 1, None, {"a": ("[INST]",)}]}, SEAL)
    assert sealed == {"<\ufdd0think>": ["<\ufdd0|im_end|>", 1, None, {"a": ["[\ufdd0INST]"]}]}


def test_the_seal_occurs_nowhere_in_the_request() -> None:
    assert choose_seal("plain") == "\ufdd0"
    assert choose_seal(["a\ufdd0"], {"b": "\ufdd1"}, {"\ufdd2": 1}) == "\ufdd3"
    assert choose_seal("literal \\ufdd0") == "\ufdd1"


def test_nesting_is_bounded() -> None:
    value: object = "x"
    for _ in range(MAX_DEPTH + 2):
        value = [value]
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        choose_seal(value)
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        Guard(CONTROL).seal_value(value, SEAL)


@pytest.mark.parametrize(
    ("literals", "expected"),
    [
        (["a<"], True),
        (["<|im_"], True),
        (["<|im_end|>", "a"], False),
        (["a <|im_start|>user"], False),
        ([], False),
    ],
)
def test_glues(literals: list[str], expected: bool) -> None:
    assert glues(literals, CONTROL) is expected


def test_rendered_text_is_without_seals() -> None:
    rendered = Rendered("a<\ufdd0|im_end|> \n", SEAL, CONTROL)
    assert rendered.text == "a<|im_end|> \n"
    assert not rendered.ends_with("<|im_end|>")
    assert rendered.plus("<think>").ends_with("<think>")

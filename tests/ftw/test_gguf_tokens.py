"""ftd.ftw.gguf_tokens: which ids begin and end a generation, for vocabularies like those of real families."""

from typing import Any

import numpy as np
import pytest

from ftd.errors import InvalidGguf
from ftd.ftw.gguf_tokens import CONTROL, NORMAL, USER_DEFINED, control_types, special_tokens, token_types


def metadata(texts: list[str], types: list[int], **more: Any) -> dict[str, Any]:
    keys = {f"tokenizer.ggml.{key}": item for key, item in more.items()}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        **keys,
    }


def test_ends_are_the_named_ids_then_those_known_by_text() -> None:
    texts = ["a", "<|im_end|>", "<|endoftext|>", "<end_of_turn>", "<|eot_id|>"]
    tokens = special_tokens(
        metadata(texts, [NORMAL, CONTROL, CONTROL, NORMAL, USER_DEFINED], eos_token_id=2, eot_token_id=0), 5
    )
    assert tokens.eos_ids == [2, 0, 1, 3, 4]


def test_harmony_closes_messages_with_end_and_generations_with_return_and_call() -> None:
    texts = ["<|end|>", "<|return|>", "<|call|>"]
    assert special_tokens(metadata(texts, [CONTROL] * 3, eos_token_id=1), 3).eos_ids == [1, 2]
    assert special_tokens(metadata(texts[:2], [CONTROL] * 2, eos_token_id=1), 2).eos_ids == [1, 0]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, False),
        ({"pre": "llama-bpe"}, True),
        ({"pre": "qwen2"}, False),
        ({"pre": "llama-bpe", "add_bos_token": False}, False),
        ({"model": "llama"}, True),
        ({"model": "llama", "add_bos_token": False}, False),
        ({"add_bos_token": True}, True),
    ],
)
def test_bos_is_added_where_the_file_or_its_tokenizer_says(keys: dict[str, Any], expected: bool) -> None:
    assert special_tokens(metadata(["a", "b"], [NORMAL] * 2, bos_token_id=0, **keys), 2).add_bos is expected


def test_nothing_is_added_without_an_id() -> None:
    tokens = special_tokens(metadata(["a"], [NORMAL], add_bos_token=True, add_eos_token=True), 1)
    assert (tokens.bos_id, tokens.pad_id, tokens.eos_ids) == (None, None, [])
    assert (tokens.add_bos, tokens.add_eos) == (False, False)


def test_sentencepiece_files_without_ids_have_them_at_their_usual_places() -> None:
    tokens = special_tokens(metadata(["<unk>", "<s>", "</s>"], [2, 3, 3], model="llama"), 3)
    assert (tokens.bos_id, tokens.eos_ids, tokens.add_bos) == (1, [2], True)
    tokens = special_tokens(metadata(["<unk>", "<s>", "</s>"], [2, 3, 3]), 3)
    assert (tokens.bos_id, tokens.eos_ids) == (None, [])


def test_minus_one_means_no_token() -> None:
    assert special_tokens(metadata(["a"], [NORMAL], padding_token_id=0xFFFFFFFF), 1).pad_id is None


def test_a_padding_id_behind_the_vocabulary_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    assert special_tokens(metadata(["a"], [NORMAL], padding_token_id=1), 1).pad_id is None
    assert "padding token ignored" in caplog.text


@pytest.mark.parametrize("types", [np.array([1], np.int32), np.array([1, 1], np.float32), "12", [1, 1]])
def test_types_that_do_not_fit_the_tokens_are_refused(types: Any) -> None:
    with pytest.raises(InvalidGguf, match="array of 2 integers"):
        token_types({"tokenizer.ggml.token_type": types}, 2)


def test_tokens_without_types_are_normal() -> None:
    assert token_types({}, 2) == [NORMAL, NORMAL]


def test_tokens_that_end_a_generation_are_control_tokens() -> None:
    assert control_types(["a", "<|im_end|>", "<u>"], [NORMAL, NORMAL, USER_DEFINED]) == [
        NORMAL,
        CONTROL,
        USER_DEFINED,
    ]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"eos_token_id": 2}, "not between 0 and 1: 2"),
        ({"bos_token_id": "1"}, "not an integer"),
        ({"bos_token_id": True}, "not an integer"),
        ({"add_bos_token": 1}, "not a bool"),
        ({"tokens": []}, "not an array of strings"),
        ({"tokens": "ab"}, "not an array of strings"),
        ({"tokens": np.array([1, 2])}, "not an array of strings"),
        ({"tokens": ["a", "a"]}, "twice"),
    ],
)
def test_wrong_values_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGguf, match=message):
        special_tokens(metadata(["a", "b"], [NORMAL] * 2) | metadata(["a", "b"], [1, 1], **keys), 2)

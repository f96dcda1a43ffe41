"""ftd.ftw.gguf_tokens: which ids begin and end a generation, for vocabularies like those of real families."""

from typing import Any

import numpy as np
import pytest

from ftd.errors import InvalidGguf, Unsupported
from ftd.ftw.gguf_tokens import (
    BYTE,
    CONTROL,
    NORMAL,
    USER_DEFINED,
    control_types,
    merge_pairs,
    pre_tokenizer_name,
    special_tokens,
    token_types,
)


def metadata(texts: list[str], types: list[int], **more: Any) -> dict[str, Any]:
    keys = {f"tokenizer.ggml.{key}": item for key, item in more.items()}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
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
        token_types({"tokenizer.ggml.token_type": types}, ["a", "b"])


def test_without_types_the_tokens_that_no_merge_makes_were_added() -> None:
    found = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["a b", "ab Ġ"]}
    texts = ["a", "b", "ab", "abĠ", "Ġ", "<|im_start|>", "[INST]", "ba", "<b"]
    assert token_types(found, texts) == [NORMAL] * 5 + [CONTROL] * 2 + [USER_DEFINED] * 2


@pytest.mark.parametrize("model", ["llama", "bert", "gemma4"])
def test_other_vocabularies_without_types_are_refused(model: str) -> None:
    with pytest.raises(
        Unsupported, match=r"which tokens are special: tokenizer\.ggml\.token_type is missing"
    ):
        token_types({"tokenizer.ggml.model": model}, ["a", "b"])


def test_tokens_that_begin_or_end_a_generation_are_control_tokens() -> None:
    texts = ["a", "<|im_end|>", "<u>", "<s>", "</s>", "<0x00>"]
    found = metadata(texts, [1] * 6, bos_token_id=3, eos_token_id=4, eot_token_id=2, eom_token_id=5)
    assert control_types(found, texts, [NORMAL, NORMAL, USER_DEFINED, NORMAL, NORMAL, BYTE]) == [
        NORMAL,
        CONTROL,
        USER_DEFINED,
        CONTROL,
        CONTROL,
        BYTE,
    ]


@pytest.mark.parametrize("said", [{}, {"tokenizer.ggml.pre": ""}, {"tokenizer.ggml.pre": "default"}])
def test_how_unknown_merges_cut_text_is_not_guessed(said: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match=r"how its tokenizer cuts text: tokenizer\.ggml\.pre is"):
        pre_tokenizer_name({"tokenizer.ggml.merges": ["a b"], **said})


def test_a_named_pre_tokenizer_must_be_known() -> None:
    assert pre_tokenizer_name({"tokenizer.ggml.pre": "smaug-bpe"}) == "smaug-bpe"
    with pytest.raises(Unsupported, match="pre-tokenizer is not supported: 'superbpe'"):
        pre_tokenizer_name({"tokenizer.ggml.pre": "superbpe"})


@pytest.mark.parametrize("lines", [["ab"], ["a "], [" b"], None, "a b"])
def test_merges_that_are_none_are_refused(lines: Any) -> None:
    with pytest.raises(InvalidGguf, match=r"merges|a merge is not"):
        merge_pairs({"tokenizer.ggml.merges": lines})


def test_bert_is_framed_whatever_the_file_says() -> None:
    texts = ["[CLS]", "[SEP]", "a"]
    said = {"model": "bert", "add_bos_token": False, "add_eos_token": False}
    tokens = special_tokens(metadata(texts, [CONTROL, CONTROL, NORMAL], **said), 3)
    assert (tokens.bos_id, tokens.eos_ids, tokens.add_bos, tokens.add_eos) == (0, [1], True, True)
    tokens = special_tokens(metadata(texts, [CONTROL] * 3, cls_token_id=2, seperator_token_id=0, **said), 3)
    assert (tokens.bos_id, tokens.eos_ids) == (2, [0])


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

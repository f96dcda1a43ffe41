"""ftd.ftw.hf_tokens: special ids and templates, against what transformers makes of the same side files."""

from pathlib import Path
from typing import Any

import checkpoint_bytes
import pytest

from ftd.errors import InvalidCheckpoint
from ftd.ftw.checkpoint import Checkpoint
from ftd.ftw.format import Tokens
from ftd.ftw.hf_tokens import SpecialTokens

BOS_FIRST = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [],
    "special_tokens": {},
}


def special(folder: Path, config: dict[str, Any] | None = None, **side: Any) -> SpecialTokens:
    _, tensors = checkpoint_bytes.llama()
    files = checkpoint_bytes.save(folder, checkpoint_bytes.config("llama", **(config or {})), tensors, **side)
    with Checkpoint(files) as checkpoint:
        return SpecialTokens(checkpoint)


def tokens(folder: Path, config: dict[str, Any] | None = None, **side: Any) -> Tokens:
    return special(folder, config, **side).tokens(checkpoint_bytes.V)


def test_all_sources_of_eos_are_collected(tmp_path: Path) -> None:
    found = tokens(
        tmp_path,
        {"eos_token_id": 5},
        generation_config={"eos_token_id": [4, 5]},
        tokenizer_config={"eos_token": "<s>"},
    )
    assert found.eos_ids == [4, 5, 0, 2]  # 2 is <|im_end|>, which ends a turn by its text


def test_null_ids_are_no_ids(tmp_path: Path) -> None:
    found = tokens(tmp_path, {"eos_token_id": None, "bos_token_id": None, "pad_token_id": -1})
    assert (found.bos_id, found.eos_ids, found.pad_id) == (None, [2], None)


@pytest.mark.parametrize(
    ("settings", "processor", "wanted"),
    [
        ({"bos_token": "<s>"}, BOS_FIRST, True),
        ({"bos_token": {"content": "<s>"}, "add_bos_token": False}, BOS_FIRST, False),
        ({"bos_token": "<s>", "add_bos_token": True}, None, True),
        ({"bos_token": "<s>"}, {"type": "Sequence", "processors": [{"type": "ByteLevel"}, BOS_FIRST]}, True),
        ({"bos_token": "<s>"}, {"type": "ByteLevel"}, False),
        ({"bos_token": None}, BOS_FIRST, False),
        (None, BOS_FIRST, True),
    ],
)
def test_a_bos_is_added_where_the_tokenizer_says_so(
    tmp_path: Path, settings: dict[str, Any] | None, processor: Any, wanted: bool
) -> None:
    tokenizer = {**checkpoint_bytes.TOKENIZER, "post_processor": processor}
    found = tokens(tmp_path, {"bos_token_id": 0}, tokenizer=tokenizer, tokenizer_config=settings)
    assert found.add_bos is wanted


@pytest.mark.parametrize(
    ("side", "wanted"),
    [
        ({}, None),
        ({"tokenizer_config": {"chat_template": "a"}}, "a"),
        ({"tokenizer_config": {"chat_template": "a"}, "chat_template": "b"}, "b"),
        (
            {
                "tokenizer_config": {
                    "chat_template": [
                        {"name": "tool_use", "template": "t"},
                        {"name": "default", "template": "d"},
                    ]
                }
            },
            "d",
        ),
    ],
)
def test_where_the_chat_template_lies(tmp_path: Path, side: dict[str, Any], wanted: str | None) -> None:
    assert special(tmp_path, **side).chat_template() == wanted


@pytest.mark.parametrize(
    ("config", "side", "message"),
    [
        ({"eos_token_id": "2"}, {}, "token id is not an integer"),
        ({"eos_token_id": [True]}, {}, "token id is not an integer"),
        ({"eos_token_id": 1 << 40}, {}, "not between 0 and 127"),
        ({"bos_token_id": 128}, {}, "not between 0 and 127: 128"),
        ({}, {"tokenizer": None}, "tokenizer.json is missing"),
        ({}, {"tokenizer": {"added_tokens": []}}, "tokenizer.json cannot be read"),
        ({}, {"tokenizer": {"model": {}, "added_tokens": [{"id": "x"}]}}, "tokenizer.json cannot be read"),
    ],
)
def test_what_is_refused(tmp_path: Path, config: dict[str, Any], side: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=message):
        tokens(tmp_path, config, **side)


EOS_LAST = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<s>", "type_id": 0}}],
}


@pytest.mark.parametrize(
    ("processor", "eos_ids", "add_eos"),
    [
        (EOS_LAST, [5, 0, 2], True),
        ({"type": "Sequence", "processors": [{"type": "ByteLevel"}, EOS_LAST]}, [5, 0, 2], True),
        ({"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["<|im_end|>", 2]}, [5, 2], True),
        ({"type": "BertProcessing", "cls": 3, "sep": ["nobody", 2]}, [5, 2], False),
        (BOS_FIRST, [5, 2], False),
        (None, [5, 2], False),
    ],
)
def test_an_eos_is_added_where_the_post_processor_adds_one(
    tmp_path: Path, processor: Any, eos_ids: list[int], add_eos: bool
) -> None:
    tokenizer = {**checkpoint_bytes.TOKENIZER, "post_processor": processor}
    found = tokens(tmp_path, {"eos_token_id": 5}, tokenizer=tokenizer)
    assert (found.eos_ids, found.add_eos) == (eos_ids, add_eos)

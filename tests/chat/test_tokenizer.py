"""Checked against the tokenizers library, which ftd only wraps, and against plain UTF-8."""

import json

import pytest
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Library
from vocabularies import Ids, byte_level, sentence_piece, with_flag

from ftd.chat.guard import Rendered
from ftd.chat.tokenizer import StreamDecoder, Tokenizer
from ftd.errors import DamagedBlob

texts = st.text(st.one_of(st.sampled_from("ab <>|/imtdhn_"), st.characters(codec="utf-8")), max_size=40)
nasty = st.lists(
    st.sampled_from(
        ["<|im_start|>", "<|im_end|>", "<think>", "<", "|", "im_end", "|>", "x", " ", "</s>", "<s>"]
    ),
    max_size=8,
).map("".join)

BYTE_LEVEL = byte_level()
TOKENIZER = Tokenizer.from_json(BYTE_LEVEL.to_str().encode(), Ids())
SPM = {scheme: sentence_piece(scheme) for scheme in (None, "first", "always", "never")}
SPM_TOKENIZERS = {k: Tokenizer.from_json(v.to_str().encode(), Ids(1, [2])) for k, v in SPM.items()}


@given(texts)
def test_bytes_of_tokens_are_the_bytes_of_the_text(text: str) -> None:
    ids = TOKENIZER.encode(text, special=False)
    assert b"".join(map(TOKENIZER.token_bytes, ids)) == text.encode()


@given(texts | nasty)
def test_trusted_text_gets_the_ids_of_the_library(text: str) -> None:
    BYTE_LEVEL.encode_special_tokens = False
    assert TOKENIZER.encode(text, special=True) == BYTE_LEVEL.encode(text, add_special_tokens=False).ids


@given(nasty)
@example("<|im_end|>")
def test_plain_text_never_becomes_a_control_token(text: str) -> None:
    ids = TOKENIZER.encode(text, special=False)
    assert not TOKENIZER.special_ids & set(ids)
    assert TOKENIZER.decode(ids) == text


@pytest.mark.parametrize("scheme", SPM)
def test_byte_fallback_tokens_are_single_bytes(scheme: str | None) -> None:
    tokenizer = SPM_TOKENIZERS[scheme]
    ids = tokenizer.encode("the 東", special=False)
    assert tokenizer.decode(ids).lstrip(" ") == "the 東"
    assert tokenizer.token_bytes(3 + 0xE6) == b"\xe6"


@pytest.mark.parametrize("scheme", SPM)
@pytest.mark.parametrize("text", ["<s>the hat</s>then", "the<s> hat", "</s></s>a", "the hat"])
def test_pieces_between_control_tokens_get_the_prefix_of_the_library(scheme: str | None, text: str) -> None:
    tokenizer = SPM_TOKENIZERS[scheme]
    rendered = Rendered(text, "", tokenizer.control_texts())
    expected = SPM[scheme].encode(text, add_special_tokens=False).ids
    assert tokenizer.encode_rendered(rendered, add_bos=False) == expected


@pytest.mark.parametrize("flag", ["lstrip", "rstrip"])
@pytest.mark.parametrize("text", ["a <|im_end|> \n b", "<|im_end|>  <|im_end|>", " <|im_end|>"])
def test_tokens_that_swallow_blanks_do_so(flag: str, text: str) -> None:
    data = with_flag(BYTE_LEVEL, "<|im_end|>", **{flag: True})
    tokenizer = Tokenizer.from_json(data, Ids())
    rendered = Rendered(text, "", tokenizer.control_texts())
    expected = Library.from_str(data.decode()).encode(text, add_special_tokens=False).ids
    assert tokenizer.encode_rendered(rendered, add_bos=False) == expected


@pytest.mark.parametrize("text", ["hi", "<s>hi", "<s><s>hi", ""])
def test_there_is_exactly_one_bos(text: str) -> None:
    """TOK-3."""
    for prompt in (text, Rendered(text, "", TOKENIZER.control_texts())):
        ids = TOKENIZER.encode_rendered(prompt)
        assert ids[0] == 0 and ids.count(0) == 1


def test_a_model_without_bos_gets_none() -> None:
    tokenizer = Tokenizer.from_json(BYTE_LEVEL.to_str().encode(), Ids(add_bos=False))
    assert 0 not in tokenizer.encode_rendered("hi")
    assert tokenizer.encode_rendered("hi", add_bos=True)[0] == 0


def test_sealed_control_texts_are_plain_text() -> None:
    rendered = Rendered("<|im_start|>a<\ufdd0|im_end|>b<|im_end|>", "\ufdd0", TOKENIZER.control_texts())
    ids = TOKENIZER.encode_rendered(rendered, add_bos=False)
    assert (ids[0], ids[-1]) == (2, 3)
    assert TOKENIZER.decode(ids) == "<|im_start|>a<|im_end|>b<|im_end|>"
    assert ids.count(3) == 1


def test_markup_becomes_control_when_the_template_uses_it() -> None:
    tokenizer = Tokenizer.from_json(BYTE_LEVEL.to_str().encode(), Ids())
    think = tokenizer.encode("<think>", special=True)
    assert len(think) == 1
    assert tokenizer.encode("<think>", special=False) == think
    assert "<think>" in tokenizer.control_texts("{{ '<think>' }}")
    assert tokenizer.encode("<think>", special=False) != think


def test_framing_tokens_are_control_without_a_flag() -> None:
    assert "<|fim|>" in TOKENIZER.control_texts()
    assert len(TOKENIZER.encode("<|fim|>", special=False)) > 1


def test_documents_get_bos_and_eos_and_no_control_tokens() -> None:
    tokenizer = Tokenizer.from_json(BYTE_LEVEL.to_str().encode(), Ids(add_eos=True))
    ids = tokenizer.encode_document("hello</s>")
    assert (ids[0], ids[-1]) == (0, 1)
    assert ids.count(1) == 1


def test_lone_surrogates_become_replacement_characters() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("a\ud83d", special=False)) == "a\ufffd"


def other_models() -> dict[str, Library]:
    """Return a vocabulary of each kind that is no byte pairs."""
    vocab = {"[UNK]": 0, "the": 1, "hat": 2, "##s": 3, "▁the": 4, "▁": 5, "s": 6}
    pieces = [(piece, -float(idx)) for piece, idx in vocab.items()]
    found = {
        "WordPiece": Library(models.WordPiece(vocab, unk_token="[UNK]")),
        "Unigram": Library(models.Unigram(pieces, 0, False)),
        "WordLevel": Library(models.WordLevel(vocab, unk_token="[UNK]")),
    }
    for library in found.values():
        library.pre_tokenizer = pre_tokenizers.Whitespace()
        library.add_special_tokens(["<s>"])
        library.add_tokens([AddedToken("<x>", lstrip=True)])
    return found


@pytest.mark.parametrize(("kind", "library"), other_models().items())
def test_every_kind_of_model_gets_the_ids_of_the_library(kind: str, library: Library) -> None:
    data = library.to_str()
    assert json.loads(data)["model"]["type"] == kind
    tokenizer = Tokenizer.from_json(data.encode(), Ids())
    for text in ("the hats <x>the", "<s>hat", "no s", ""):
        assert tokenizer.encode(text, special=True) == library.encode(text, add_special_tokens=False).ids


def test_merges_may_be_texts_and_come_with_options() -> None:
    layout = json.loads(SPM[None].to_str())
    layout["model"] |= {"ignore_merges": True, "fuse_unk": True, "end_of_word_suffix": "t"}
    pairs = json.dumps(layout)
    layout["model"]["merges"] = [" ".join(merge) for merge in layout["model"]["merges"]]
    texts_ = json.dumps(layout)
    for text in ("the hat", "hehe the", "東東 t"):
        expected = Library.from_str(pairs).encode(text, add_special_tokens=False).ids
        for data in (pairs, texts_):
            assert Tokenizer.from_json(data.encode(), Ids()).encode(text, special=True) == expected


def test_embedding_models_are_neither_cut_nor_padded() -> None:
    library = byte_level()
    library.enable_truncation(3)
    library.enable_padding(length=5)
    ids = Tokenizer.from_json(library.to_str().encode(), Ids()).encode("ab" * 9, special=True)
    assert ids == BYTE_LEVEL.encode("ab" * 9, add_special_tokens=False).ids and len(ids) > 5


def test_merges_of_what_is_no_token_are_refused() -> None:
    layout = json.loads(BYTE_LEVEL.to_str())
    layout["model"]["merges"].append(["nowhere", "nothing"])
    with pytest.raises(DamagedBlob):
        Tokenizer.from_json(json.dumps(layout).encode(), Ids())


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", b'{"model": {"type": "Nope"}}'])
def test_a_damaged_file_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedBlob):
        Tokenizer.from_json(data, Ids())


def test_ids_outside_of_the_vocabulary_have_no_bytes() -> None:
    assert TOKENIZER.token_bytes(-1) == TOKENIZER.token_bytes(TOKENIZER.vocab_size) == b""


@given(texts, st.integers(1, 5))
@settings(max_examples=examples(50))
def test_a_stream_decodes_to_what_the_whole_does(text: str, step: int) -> None:
    ids = TOKENIZER.encode(text, special=False)
    decoder = StreamDecoder(TOKENIZER)
    parts = [decoder.push(ids[start : start + step]) for start in range(0, len(ids), step)]
    assert "".join(parts) + decoder.flush() == text
    assert all("\ufffd" not in part for part in parts) or "\ufffd" in text


def test_a_cut_character_is_flushed_as_a_replacement() -> None:
    ids = TOKENIZER.encode("京", special=False)
    decoder = StreamDecoder(TOKENIZER)
    first = decoder.push(ids[:1]) if len(ids) > 1 else decoder.push([])
    assert first == ""
    assert decoder.flush() == ("\ufffd" if len(ids) > 1 else "")


def test_special_tokens_are_silent_and_markup_is_shown() -> None:
    ids = TOKENIZER.encode("a<|im_start|><think>b</s>", special=True)
    assert StreamDecoder(TOKENIZER).push(ids) == "a<think>b"
    assert StreamDecoder(TOKENIZER, show_special=True).push(ids) == "a<|im_start|><think>b</s>"

"""ftd.ftw.tokenizer_json against the conformance vectors that ship with llama.cpp's vocabularies."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from ftd.errors import InvalidGguf, Unsupported
from ftd.ftw.gguf import GgufFile
from ftd.ftw.gguf_tokens import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, special_tokens
from ftd.ftw.tokenizer_json import tokenizer_json

GOLDEN = Path(__file__).parents[1] / "golden"
SEPARATOR = b"\n__ggml_vocab_test__\n"
FAST = ["llama-spm", "bert-bge", "gpt-2"]
SLOW = [
    "qwen2",
    "llama-bpe",
    "deepseek-coder",
    "qwen35",
    "phi-3",
    "command-r",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "mpt",
    "refact",
    "starcoder",
]
QUIRKY = [
    "It's 2024-01-01, we'LL see\r\n\r\n\tTabs  and   spaces \n end ",
    "ﬁ ſ 'ſ e\u0301 \u00a0nbsp\u3000 wide\u200b zero",
    "x" * 300,
    " " * 70 + "y",
    "\n" * 9 + "z\n\n",
    "<|im_start|>user<s></s><|endoftext|>",
    "௧௨௩ ١٢٣ ½ Ⅷ 12345678901",
]


def load(path: Path) -> tuple[dict[str, Any], Tokenizer]:
    with GgufFile.open(path) as file:
        tokenizer = Tokenizer.from_str(tokenizer_json(file.metadata))
        tokenizer.encode_special_tokens = True  # the vectors were made without recognising control tokens
        return file.metadata, tokenizer


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_ids_are_those_of_llama_cpp(name: str, real_model: Callable[[str], Path]) -> None:
    path = real_model(f"vocab/ggml-vocab-{name}.gguf")
    texts = [part.decode() for part in Path(f"{path}.inp").read_bytes().split(SEPARATOR)]
    lines = Path(f"{path}.out").read_text().split("\n")
    if texts[-1] == "":
        texts.pop()
    wanted = {
        text: [int(number) for number in line.split()] for text, line in zip(texts, lines, strict=False)
    }
    assert len(texts) >= 40 and len(lines) >= len(texts)
    _, tokenizer = load(path)
    assert {text: tokenizer.encode(text, add_special_tokens=False).ids for text in texts} == wanted


@pytest.mark.slow
@pytest.mark.parametrize("name", json.loads((GOLDEN / "ftw_ids.json").read_text()))
def test_ids_of_mixed_text_are_those_of_llama_tokenize(name: str, models_dir: Path) -> None:
    """The hashes are of what ``llama-tokenize --ids --no-bos --no-parse-special --no-escape`` printed."""
    path = models_dir / "vocab" / f"ggml-vocab-{name}.gguf"
    path = path if path.exists() else models_dir / f"{name}.gguf"
    if not path.exists():
        pytest.skip(f"no such vocabulary: {path}")
    text = (GOLDEN / "ftw_text.txt").read_bytes().decode()
    ids = load(path)[1].encode(text, add_special_tokens=False).ids
    digest = hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()
    assert [len(ids), digest] == json.loads((GOLDEN / "ftw_ids.json").read_text())[name]


@pytest.mark.parametrize("name", [pytest.param("qwen2", marks=pytest.mark.slow), "llama-spm", "gpt-2"])
def test_decoding_gives_the_text_back(name: str, models_dir: Path) -> None:
    _, tokenizer = load(models_dir / "vocab" / f"ggml-vocab-{name}.gguf")
    for text in QUIRKY:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_word_pieces_of_a_file_are_those_of_the_publishers_tokenizer(
    real_model: Callable[[str], Path],
) -> None:
    """MiniLM and BGE have the vocabulary of bert-base-uncased: one as tokenizer.json, the other as GGUF."""
    wanted = Tokenizer.from_file(str(real_model("minilm") / "tokenizer.json"))
    wanted.no_truncation()
    wanted.no_padding()
    _, tokenizer = load(real_model("vocab/ggml-vocab-bert-bge.gguf"))
    mixed = (GOLDEN / "ftw_text.txt").read_bytes().decode()
    for text in (mixed, "Ünïcödé naïve CAFÉ", "e\u0301 ½ 漢字", "x" * 101, ""):
        assert tokenizer.encode(text).ids == wanted.encode(text, add_special_tokens=False).ids


def test_smollm2_agrees_with_the_file_on_every_id(smollm2_gguf: Path) -> None:
    metadata, tokenizer = load(smollm2_gguf)
    texts = metadata["tokenizer.ggml.tokens"]
    assert [tokenizer.id_to_token(index) for index in range(len(texts))] == texts
    tokenizer.encode_special_tokens = False
    assert tokenizer.encode("<|im_start|>user\nHi<|im_end|>", add_special_tokens=False).ids == [
        1,
        4093,
        198,
        26843,
        2,
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["llama-bpe", "qwen2", "deepseek-llm", "deepseek-coder", "starcoder", "refact", "command-r"]
)
def test_vocabularies_are_known_without_the_name_of_their_pre_tokenizer(
    name: str, real_model: Callable[[str], Path]
) -> None:
    with GgufFile.open(real_model(f"vocab/ggml-vocab-{name}.gguf")) as file:
        said = {key: value for key, value in file.metadata.items() if key != "tokenizer.ggml.pre"}
        wanted = tokenizer_json(file.metadata)
    assert tokenizer_json(said) == wanted
    assert tokenizer_json(said | {"tokenizer.ggml.pre": "default"}) == wanted
    assert special_tokens(said, 1 << 20) == special_tokens(said | {"tokenizer.ggml.pre": name}, 1 << 20)


@pytest.mark.parametrize(("name", "pre"), [("gpt-2", "gpt-2"), ("falcon", "falcon"), ("gpt-neox", "mpt")])
def test_old_vocabularies_are_known_by_their_merges(
    name: str, pre: str, real_model: Callable[[str], Path]
) -> None:
    with GgufFile.open(real_model(f"vocab/ggml-vocab-{name}.gguf")) as file:
        said = {key: value for key, value in file.metadata.items() if key != "tokenizer.ggml.pre"}
    assert tokenizer_json(said) == tokenizer_json(said | {"tokenizer.ggml.pre": pre})


def test_smollm2_without_types_and_names_has_the_same_ids(smollm2_gguf: Path) -> None:
    with GgufFile.open(smollm2_gguf) as file:
        left_out = ("tokenizer.ggml.pre", "tokenizer.ggml.token_type")
        said = {key: value for key, value in file.metadata.items() if key not in left_out}
        wanted = tokenizer_json(file.metadata)
    assert tokenizer_json(said) == wanted


def test_a_vocabulary_that_nobody_knows_is_refused_without_a_name(real_model: Callable[[str], Path]) -> None:
    with (
        GgufFile.open(real_model("vocab/ggml-vocab-aquila.gguf")) as file,
        pytest.raises(Unsupported, match=r"tokenizer\.ggml\.pre is missing"),
    ):
        tokenizer_json(file.metadata)


def test_a_cased_word_piece_vocabulary_keeps_case_and_accents() -> None:
    found: dict[str, Any] = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": ["[UNK]", "▁a", "▁A", "▁é"],
        "tokenizer.ggml.token_type": np.array([CONTROL, NORMAL, NORMAL, NORMAL], np.int32),
    }
    assert Tokenizer.from_str(tokenizer_json(found)).encode("A é").ids == [1, 0]
    cased = found | {"tokenizer.ggml.normalizer.lowercase": False}
    assert Tokenizer.from_str(tokenizer_json(cased)).encode("A é").ids == [2, 3]
    kept = found | {"tokenizer.ggml.normalizer.strip_accents": False}
    assert Tokenizer.from_str(tokenizer_json(kept)).encode("A é").ids == [1, 3]


def byte_level(**more: Any) -> dict[str, Any]:
    keys = {f"tokenizer.ggml.{key}": item for key, item in more.items()}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "ab", "Ġ", "Ġa", "<x>", "  "],
        "tokenizer.ggml.token_type": np.array([1, 1, 1, 1, 1, CONTROL, USER_DEFINED], np.int32),
        "tokenizer.ggml.merges": ["a b", "Ġ a"],
        **keys,
    }


def sentencepiece(**more: Any) -> dict[str, Any]:
    keys = {f"tokenizer.ggml.{key}": item for key, item in more.items()}
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "<0x0A>", "▁", "a", "b", "ab", "▁ab", "▁a", "<u>"],
        "tokenizer.ggml.scores": np.array([0, 0, 0, -4, -5, -6, -1, -2, -3, 0], np.float32),
        "tokenizer.ggml.token_type": np.array(
            [UNKNOWN, CONTROL, BYTE, *[NORMAL] * 6, USER_DEFINED], np.int32
        ),
        "tokenizer.ggml.unknown_token_id": 0,
        **keys,
    }


def test_control_tokens_are_special_and_user_defined_ones_are_not() -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json(byte_level()))
    assert tokenizer.encode("a<x>  b").ids == [0, 5, 6, 1]
    tokenizer.encode_special_tokens = True
    assert 5 not in tokenizer.encode("a<x>  b").ids
    assert 6 in tokenizer.encode("a<x>  b").ids


def test_sentencepiece_merges_by_score_and_escapes_blanks() -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json(sentencepiece()))
    assert tokenizer.encode("ab a").ids == [7, 8]
    assert tokenizer.encode("a\n").ids == [8, 2]
    assert tokenizer.encode("b<u>b").ids == [3, 5, 9, 3, 5]
    assert tokenizer.decode([7, 8]) == "ab a"


@pytest.mark.parametrize(("scores", "wanted"), [([-1, -2], [3, 2]), ([-2, -1], [0, 4])])
def test_sentencepiece_prefers_the_better_score(scores: list[int], wanted: list[int]) -> None:
    vocabulary = sentencepiece(
        tokens=["x", "y", "z", "xy", "yz"],
        token_type=np.full(5, NORMAL, np.int32),
        scores=np.array([-9, -9, -9, *scores], np.float32),
        add_space_prefix=False,
    )
    assert Tokenizer.from_str(tokenizer_json(vocabulary)).encode("xyz").ids == wanted


def test_sentencepiece_without_a_space_prefix() -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json(sentencepiece(add_space_prefix=False)))
    assert tokenizer.encode("ab a").ids == [6, 8]
    assert tokenizer.decode([6, 8]) == "ab a"


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        (byte_level(model="rwkv"), Unsupported, "tokenizer is not supported: 'rwkv'"),
        (byte_level(model=None), Unsupported, "tokenizer is not supported: None"),
        (byte_level(model=np.array([1])), Unsupported, "tokenizer is not supported"),
        (byte_level(pre="new"), Unsupported, "pre-tokenizer is not supported: 'new'"),
        (byte_level(pre=np.array([1, 2])), Unsupported, "pre-tokenizer is not supported"),
        (byte_level(merges=None), InvalidGguf, "merges is not an array"),
        (byte_level(merges=["ab"]), InvalidGguf, "not two texts"),
        (byte_level(merges=["a "]), InvalidGguf, "not two texts"),
        (byte_level(merges=[""]), InvalidGguf, "not two texts"),
        (byte_level(tokens=["a"] * 7), InvalidGguf, "twice"),
        (sentencepiece(scores=None), InvalidGguf, "scores is not an array of 10 numbers"),
        (sentencepiece(scores=np.zeros(3)), InvalidGguf, "scores is not an array of 10 numbers"),
        (sentencepiece(scores=np.full(10, np.nan)), InvalidGguf, "not finite"),
        (sentencepiece(unknown_token_id=10), InvalidGguf, "not between 0 and 9"),
        (sentencepiece(add_space_prefix=1), InvalidGguf, "not a bool"),
        (byte_level(model="bert"), InvalidGguf, "no unknown token: '\\[UNK\\]'"),
    ],
)
def test_impossible_vocabularies_are_refused(
    metadata: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        tokenizer_json(metadata)


def test_a_vocabulary_larger_than_the_embedding_is_refused() -> None:
    assert tokenizer_json(byte_level(), vocab_size=7)
    with pytest.raises(InvalidGguf, match="7 tokens, the embedding 6 rows"):
        tokenizer_json(byte_level(), vocab_size=6)

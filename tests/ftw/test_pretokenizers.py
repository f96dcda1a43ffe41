"""ftd.ftw.pretokenizers: pieces typed by hand, after the rules that each family's tokenizer describes."""

import pytest
from tokenizers import Regex
from tokenizers import pre_tokenizers as hf

from ftd.ftw.pretokenizers import PRE_TOKENIZERS

TEXTS = [
    "It's 2024-01-01, we'LL see\r\n\r\n\tTabs  and   spaces \n end ",
    "ﬁ ſ 'ſ e\u0301 \u00a0nbsp\u3000 wide\u200b zero",
    "x" * 300 + " " * 70 + "\n" * 9 + "௧௨௩ ١٢٣ ½ Ⅷ 12345678901 한국어 日本語 😀👩‍👩‍👧 <|im_end|>",
    "",
]


def pieces(name: str, text: str) -> list[str]:
    steps = [hf.Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[name].patterns]
    return [piece for piece, _ in hf.Sequence(steps).pre_tokenize_str(text)]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_compiles_and_keeps_the_text(name: str) -> None:
    for text in TEXTS:
        assert "".join(pieces(name, text)) == text


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("gpt-2", "it's 123 a  b", ["it", "'s", " 123", " a", " ", " b"]),
        ("smollm", "a 12", ["a", " ", "1", "2"]),
        ("llama-bpe", "I'LL 12345\n\n x", ["I", "'LL", " ", "123", "45", "\n\n", " x"]),
        ("qwen2", "12 _a\n", ["1", "2", " _", "a", "\n"]),
        ("qwen35", "e\u0301a", ["e\u0301a"]),
        ("deepseek-v3", "1234漢字abc", ["123", "4", "漢字", "abc"]),
        ("deepseek-llm", "abc\ndef 12", ["abc", "\n", "def", " ", "12"]),
        ("falcon", "a,b 12345", ["a", ",", "b", " ", "123", "45"]),
        ("gpt-4o", "CamelCase's 1234", ["Camel", "Case's", " ", "123", "4"]),
        ("tekken", "CamelCase 12", ["Camel", "Case", " ", "1", "2"]),
        ("kimi-k2", "abc漢字Def's 1234", ["abc", "漢字", "Def's", " ", "123", "4"]),
        ("kimi-k2", "한국漢字日本 !?\n", ["한국", "漢字日本", " !?\n"]),
        ("youtu", "CamelCase's 12漢字한국", ["Camel", "Case's", " ", "1", "2", "漢字", "한국"]),
        ("minicpm5", "It's 12345", ["It", "'s", " ", "123", "45"]),
        ("ufakzeka", "Ali'nin 12", ["Ali", "'nin", " ", "1", "2"]),
    ],
)
def test_pieces(name: str, text: str, wanted: list[str]) -> None:
    assert pieces(name, text) == wanted


def test_llama_3_takes_whole_tokens_and_gpt_2_does_not() -> None:
    assert PRE_TOKENIZERS["llama-bpe"].ignore_merges
    assert not PRE_TOKENIZERS["gpt-2"].ignore_merges

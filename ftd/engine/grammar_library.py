"""The library of grammars, in the process that follows them: a vocabulary in its shape, and new matchers."""

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from ftd.engine.messages import Vocabulary

# An automaton state takes 1 to 2 KiB; the library's own limits bound the work of one mask
MAX_LEXER_STATES = 50_000
MAX_GRAMMAR_SYMBOLS = 50_000


def new_matcher(tokenizer: LLTokenizer, text: str) -> LLMatcher:
    """Return a matcher at the start of a grammar, in error if it is none."""
    limits = LLParserLimits(
        max_lexer_states=MAX_LEXER_STATES, max_grammar_size=MAX_GRAMMAR_SYMBOLS, verbose_errors=False
    )
    return LLMatcher(tokenizer, text, log_level=0, limits=limits)


class _Words:
    """A vocabulary in the shape that ``llguidance.LLTokenizer`` takes.

    Called with a text, it returns ids: where a grammar leaves one text only, the library allows no other cut
    of it. The longest match at each place is what models write in JSON.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_ids[0]
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_ids
        self.library: LLTokenizer | None = None

    def __call__(self, text: str) -> list[int]:
        return [] if self.library is None else self.library.greedy_tokenize(text)


def tokenizer_of(vocabulary: Vocabulary) -> LLTokenizer:
    """Return a vocabulary as the library wants it; takes up to seconds, with Python's lock held."""
    count = len(vocabulary.tokens)
    eos_ids = [token for token in vocabulary.eos_ids if token < count]  # the library refuses others
    vocabulary = Vocabulary(tokens=vocabulary.tokens, special_ids=vocabulary.special_ids, eos_ids=eos_ids)
    if not eos_ids:
        # The library asks for an id that ends a text: one behind the last, which no logit has
        tokens, special = [*vocabulary.tokens, b"<end>"], [*vocabulary.special_ids, count]
        vocabulary = Vocabulary(tokens=tokens, special_ids=special, eos_ids=[count])
    words = _Words(vocabulary)
    words.library = LLTokenizer(
        words,  # type: ignore[arg-type]
        n_vocab=len(vocabulary.tokens),
        eos_token=vocabulary.eos_ids,
    )
    return words.library

"""Whether a text follows a format, asked of llguidance with a vocabulary of bytes."""

import llguidance

from ftd.chat.schema import grammar_of


class Bytes:
    """A vocabulary of the 256 bytes and an end."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)
    is_tokenizer_wrapper = True

    def __call__(self, text):
        return list(text)


TOKENIZER = llguidance.LLTokenizer(Bytes(), n_vocab=257, eos_token=[256], slices=[])


def takes(wanted, text):
    """Whether ``text`` is a whole text of the grammar, after which nothing may follow but the end."""
    matcher = llguidance.LLMatcher(TOKENIZER, grammar_of(wanted), log_level=0)
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()

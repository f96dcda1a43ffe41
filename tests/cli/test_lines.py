"""Reading messages from typed lines."""

from collections.abc import Callable

import pytest

from ftd.cli.lines import CONTINUATION, PLACEHOLDER, PROMPT, read_message


def typed(*lines: str) -> tuple[Callable[[str, str], str], list[tuple[str, str]]]:
    rest, prompts = list(lines), []

    def read(prompt: str, placeholder: str) -> str:
        prompts.append((prompt, placeholder))
        if not rest:
            raise EOFError
        return rest.pop(0)

    return read, prompts


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("hello",), "hello"),
        (("",), ""),
        (('"""one', 'two"""'), "one\ntwo"),
        (('"""', "one", '"""'), "\none\n"),
        (('"""one line"""',), "one line"),
        (('"""a', 'b"""  '), "a\nb"),
        (('"""a "quoted" word', 'end"""'), 'a "quoted" word\nend'),
        (('/set system """you', 'are kind"""'), "/set system you\nare kind"),
        (('say """ and go on',), 'say """ and go on'),
    ],
)
def test_messages(lines: tuple[str, ...], message: str) -> None:
    read, prompts = typed(*lines)
    assert read_message(read) == message
    assert prompts[0] == (PROMPT, PLACEHOLDER)
    assert prompts[1:] == [(CONTINUATION, "")] * (len(lines) - 1)


def test_the_end_of_input_inside_quotes_ends_it() -> None:
    read, _ = typed('"""never closed')
    with pytest.raises(EOFError):
        read_message(read)

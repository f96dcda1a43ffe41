"""Flags of ``ftd serve``: one for each setting."""

import argparse

import pytest

from ftd import config
from ftd.cli import flags
from ftd.cli.usage import Parser
from ftd.errors import InvalidOption


def parse(*words: str) -> argparse.Namespace:
    parser = Parser("serve", "run the daemon")
    flags.add(parser)
    return parser.parse(list(words))


def test_flags_are_typed_and_win_over_the_environment() -> None:
    given = flags.values(parse("--host", "127.0.0.1:1234", "--keep-alive", "10s", "--num-threads", "3"))
    assert given == {"host": "127.0.0.1:1234", "keep_alive_ns": 10 * 10**9, "num_threads": 3}
    loaded = config.load(given, {"FTD_HOST": "1.2.3.4", "FTD_MAX_QUEUE": "9"})
    assert (loaded.server.host, loaded.server.max_queue) == ("127.0.0.1:1234", 9)
    assert (loaded.sources["host"], loaded.sources["max_queue"]) == ("flag", "FTD_MAX_QUEUE")


def test_every_setting_has_a_flag() -> None:
    options = vars(parse())
    assert options.keys() == {setting.name for setting in config.SETTINGS}
    assert set(options.values()) == {None}


def test_a_bad_value_names_the_flag() -> None:
    with pytest.raises(InvalidOption, match="--max-queue: not an integer: 'many'"):
        flags.values(parse("--max-queue", "many"))

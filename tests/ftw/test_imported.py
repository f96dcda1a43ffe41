"""Keys of conversions, and what importers hand back."""

import hashlib
import itertools
import json

import pytest
from ftw_draft import draft
from memory_sink import MemorySink

from ftd.ftw import imported
from ftd.ftw.format import TOKENIZER_MEDIA_TYPE
from ftd.ftw.imported import conversion_key, write_tokenizer
from ftd.ftw.writer import BlobDescriptor, WrittenModel

FILES = {"a.gguf": "sha256:1", "b.gguf": "sha256:2"}


def test_a_key_says_everything_that_makes_other_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged bytes of one key are gone on with, so nothing that changes them may be missing from it."""
    keys = [
        conversion_key(FILES, None),
        conversion_key(FILES, "q4_0"),
        conversion_key({**FILES, "b.gguf": "sha256:3"}, None),
        conversion_key({"a.gguf": "sha256:1", "c.gguf": "sha256:2"}, None),
        conversion_key({"a.gguf": "sha256:2", "b.gguf": "sha256:1"}, None),
        conversion_key({"a.gguf": "sha256:1"}, None),
        conversion_key({}, None),
    ]
    monkeypatch.setattr(imported, "CONVERSION", imported.CONVERSION + 1)
    keys.append(conversion_key(FILES, None))
    monkeypatch.undo()
    monkeypatch.setattr(imported, "__version__", "99.0")
    keys.append(conversion_key(FILES, None))
    assert len(set(keys)) == len(keys)


def test_a_key_is_a_file_name_and_does_not_depend_on_order() -> None:
    keys = {conversion_key(dict(order), "q8_0") for order in itertools.permutations(FILES.items())}
    (key,) = keys
    assert len(key) == 32 and set(key) <= set("0123456789abcdef")


def test_a_tokenizer_becomes_a_blob() -> None:
    sink = MemorySink()
    data = json.dumps({"version": "1.0"}).encode()
    blob = write_tokenizer(sink, data)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert blob == BlobDescriptor(TOKENIZER_MEDIA_TYPE, digest, len(data))
    assert sink.blobs == {digest: data} and sink.open_writers == 0


def test_weights_come_first_and_an_empty_template_is_none() -> None:
    config = draft()
    parts = [BlobDescriptor("weights", f"sha256:{n}", n) for n in range(3)]
    written = WrittenModel(config=config, config_blob=parts[0], weights=(parts[1], parts[2]))
    tokenizer = BlobDescriptor("tokenizer", "sha256:t", 9)
    for template, kept in (("{{ x }}", "{{ x }}"), ("", None), (None, None)):
        made = imported.imported(written, tokenizer, template)
        assert (made.config_digest, made.config_size) == ("sha256:0", 0) and made.config is config
        assert made.blobs == (parts[1], parts[2], tokenizer)
        assert (made.chat_template, made.system, made.parameters) == (kept, None, {})

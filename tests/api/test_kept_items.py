"""Items that clients may refer to: against what was kept, and bounded."""

import pytest

from ftd.api import kept_items
from ftd.api.jsontext import Fields
from ftd.api.kept_items import KeptItems
from ftd.api.openai_responses import parse_response
from ftd.errors import NotFound


def message(item_id, text):
    content = [{"type": "output_text", "text": text}]
    return {"id": item_id, "type": "message", "role": "assistant", "content": content}


def test_reference_reads_as_the_item_itself():
    kept = KeptItems()
    items = [
        {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "hm"},
        message("msg_1", "Let me look."),
        {"id": "fc_1", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    ]
    kept.keep(items)
    asked = {"role": "user", "content": "hi"}
    references = [{"type": "item_reference", "id": item["id"]} for item in items]
    whole = parse_response(Fields({"model": "m", "input": [asked, *items]}), KeptItems())
    referred = parse_response(Fields({"model": "m", "input": [asked, *references]}), kept)
    assert referred.messages == whole.messages
    assert referred.messages[1]["content"] == "Let me look."


def test_unknown_item_says_what_to_do():
    body = {"model": "m", "input": [{"type": "item_reference", "id": "msg_9"}]}
    with pytest.raises(NotFound, match="msg_9") as caught:
        parse_response(Fields(body), KeptItems())
    assert "send the item itself" in caught.value.hint


def test_oldest_items_go_first(monkeypatch):
    monkeypatch.setattr(kept_items, "MAX_ITEMS", 3)
    monkeypatch.setattr(kept_items, "MAX_CHARS", 10)
    kept = KeptItems()
    kept.keep([message(f"msg_{n}", "abc") for n in range(5)])
    with pytest.raises(NotFound):
        kept.find("msg_1")
    assert kept.find("msg_2")["content"][0]["text"] == "abc"
    kept.keep([message("long", "x" * 8)])
    with pytest.raises(NotFound):
        kept.find("msg_4")
    assert kept.find("long")
    kept.keep([message("huge", "x" * 11)])
    with pytest.raises(NotFound):
        kept.find("huge")

"""A tiny GGUF model, and how tests create one of it in a store."""

from pathlib import Path
from typing import Any

import checkpoint_bytes
import gguf_bytes

from ftd.chat.renderer import Renderer
from ftd.daemon.create import create
from ftd.daemon.create_request import check_request
from ftd.registry.store import Store

JINJA = "{{ messages[0].content }}"
MODEL = gguf_bytes.gguf(*gguf_bytes.model(**{"tokenizer.chat_template": JINJA}))
UNPARSED = gguf_bytes.gguf(*gguf_bytes.model(**{"tokenizer.chat_template": "{% if %}"}))
BARE = gguf_bytes.gguf(*gguf_bytes.model())


def upload(store: Store, data: bytes = MODEL) -> dict[str, str]:
    return {"model.gguf": store.blobs.put(data)[0]}


async def made(store: Store, renderer: Renderer, **body: Any) -> list[dict[str, Any]]:
    return [status async for status in create(store, check_request({"model": "m", **body}), renderer)]


def files_in(store: Store) -> list[str]:
    return sorted(path.name for path in store.blobs.folder.iterdir())


def upload_checkpoint(store: Store, folder: Path, **side: Any) -> dict[str, str]:
    """Put a mixture-of-experts checkpoint into the store; return its files as a client names them."""
    files = checkpoint_bytes.save(folder, *checkpoint_bytes.mixtral(), shards=2, **side)
    return {f"hf/{name}": store.blobs.put(path.read_bytes())[0] for name, path in files.items()}

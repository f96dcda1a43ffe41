"""Every example parses, is read back as written, and creates a model (from a tiny file of its family)."""

from pathlib import Path
from typing import Any

import gguf_bytes
import pytest

from ftd.chat.modelfile import Modelfile, format_modelfile, parse_modelfile
from ftd.chat.renderer import Renderer
from ftd.chat.templates import ChatTemplate
from ftd.daemon.create import create
from ftd.daemon.create_request import check_request
from ftd.daemon.modelinfo import read_model
from ftd.names import parse_name
from ftd.registry.store import Store

FOLDER = Path(__file__).parents[1] / "Modelfile-examples"
EXAMPLES = sorted(FOLDER.glob("*.Modelfile"))
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)


def parsed(path: Path) -> Modelfile:
    return parse_modelfile(path.read_bytes(), path.name)


def request(model: str, file: Modelfile, **source: Any) -> dict[str, Any]:
    fields = {
        "template": file.template,
        "system": file.system,
        "license": file.licenses,
        "parameters": file.parameters,
        "messages": file.messages,
    }
    return {"model": model, **source, **{key: value for key, value in fields.items() if value}}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_read_back_as_it_is_written(path: Path) -> None:
    file = parsed(path)
    assert file.warnings == []
    assert parse_modelfile(format_modelfile(file).encode()) == file


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
async def test_example_creates_a_model(path: Path, tmp_path: Path) -> None:
    file = parsed(path)
    store = Store(tmp_path)
    architecture = "qwen3" if path.stem == "qwen3" else "llama"
    digest, _ = store.blobs.put(
        gguf_bytes.gguf(*gguf_bytes.model(architecture, **{"tokenizer.chat_template": TEMPLATE}))
    )
    async with Renderer() as renderer:
        source: dict[str, Any] = {"files": {"model.gguf": digest}}
        if not file.from_[0].endswith(".gguf"):
            async for _ in create(store, check_request({"model": file.from_[0], **source}), renderer):
                pass
            source = {"from": file.from_[0]}
        async for _ in create(store, check_request(request("made", file, **source)), renderer):
            pass
        info = read_model(store, parse_name("made"))
        assert info.parameters == file.parameters
        assert info.system == (file.system or "")
        assert info.messages == file.messages
        assert info.licenses == file.licenses
        assert info.template.text == (file.template or TEMPLATE)
        chat = ChatTemplate(info.template.text, renderer, kind=info.template.kind)
        prompt = (await chat.render([{"role": "user", "content": "Hi"}])).text
        assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_the_quickstart_example_names_the_file_that_is_fetched() -> None:
    assert parsed(FOLDER / "smollm2.Modelfile").from_ == ["../.cache/models/smollm2.gguf"]

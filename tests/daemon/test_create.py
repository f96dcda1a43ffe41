"""Checked against the texts and layer digests of the reference page; the weights are a tiny GGUF file."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import checkpoint_bytes
import freetoken_bytes
import pytest

from ftd.chat.renderer import Renderer
from ftd.chat.templates import ChatTemplate
from ftd.daemon import create as create_module
from ftd.daemon import modelinfo
from ftd.daemon.create import convert, create
from ftd.daemon.create_request import check_request
from ftd.daemon.modelinfo import read_model
from ftd.errors import (
    Unsupported,
)
from ftd.names import ModelName, parse_name
from ftd.registry.manifest import Descriptor, build_manifest
from ftd.registry.store import Store
from tests.daemon.creating import BARE, JINJA, MODEL, files_in, made, upload, upload_checkpoint

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("nothing_unfinished")]


def digest_of(store: Store, name: str, media_type: str) -> str:
    layer = store.read(parse_name(name)).layer(media_type)
    assert layer is not None
    return layer.digest.removeprefix("sha256:")


async def test_from_a_file(store: Store, renderer: Renderer) -> None:
    statuses = [status["status"] for status in await made(store, renderer, files=upload(store))]
    assert statuses[0] == "parsing GGUF"
    assert statuses[-2:] == ["writing manifest", "success"]
    assert sum(status.startswith("creating new layer sha256:") for status in statuses) == 3
    info = read_model(store, parse_name("m"))
    assert (info.config.architecture, info.template.kind, info.template.text) == ("llama", "jinja", JINJA)
    assert set(info.blob_paths) == {blob.digest for blob in info.config.blobs}
    assert info.details["family"] == "llama" and info.details["quantization_level"]


async def test_from_a_checkpoint(store: Store, renderer: Renderer, tmp_path: Path) -> None:
    files = upload_checkpoint(store, tmp_path / "hf", chat_template=JINJA)
    statuses = await made(store, renderer, files=files, quantize="Q8_0")
    assert statuses[0]["status"] == "converting safetensors"
    assert statuses[-1]["status"] == "success"
    bars = [status for status in statuses if status["status"] == "converting model"]
    assert bars[-1]["completed"] == bars[-1]["total"] > 0
    info = read_model(store, parse_name("m"))
    assert (info.config.architecture, info.config.quantization) == ("mixtral", "Q8_0")
    assert (info.template.kind, info.template.text) == ("jinja", JINJA)
    assert set(info.blob_paths) == {blob.digest for blob in info.config.blobs}
    assert len(info.blob_paths) == 2  # dense weights and experts
    weights = [digest for name, digest in files.items() if name.endswith(".safetensors")]
    assert not any(store.blobs.has(digest) for digest in weights)


async def test_from_a_folder_of_freetoken(store: Store, renderer: Renderer, tmp_path: Path) -> None:
    config, arrays = checkpoint_bytes.mixtral()
    saved = freetoken_bytes.converted(arrays).save(tmp_path / "ftw1", config, shard_bytes=1 << 16)
    files = {f"m/{name}": store.blobs.put(path.read_bytes())[0] for name, path in saved.items()}
    statuses = await made(store, renderer, files=files)
    assert statuses[0]["status"] == "converting FTW version 1"
    info = read_model(store, parse_name("m"))
    assert (info.config.architecture, info.config.provenance["source"]) == ("mixtral", "ftw")
    assert len(info.blob_paths) == 2


async def test_gguf_files_are_not_quantised_twice(store: Store, renderer: Renderer) -> None:
    with pytest.raises(Unsupported, match=r"keeps its quantization: token_embd\.weight is Q4_0"):
        await made(store, renderer, files=upload(store), quantize="q8_0")
    assert store.list() == []


async def test_progress_counts_up_to_the_total(store: Store, renderer: Renderer) -> None:
    bars = [s for s in await made(store, renderer, files=upload(store)) if s["status"] == "converting model"]
    assert [bar["completed"] for bar in bars] == sorted(bar["completed"] for bar in bars)
    assert bars[-1]["completed"] == bars[-1]["total"] > 0


async def test_the_upload_is_gone_once_it_is_converted(store: Store, renderer: Renderer) -> None:
    files = upload(store)
    await made(store, renderer, files=files)
    assert not store.blobs.has(files["model.gguf"])
    assert len(files_in(store)) == len(store.read(parse_name("m")).blobs)


async def test_text_layers_are_exact_bytes(store: Store, renderer: Renderer) -> None:
    await made(
        store,
        renderer,
        files=upload(store),
        template="{{ .System }} {{ .Prompt }}",
        system="Say hi!",
        license=["MIT", "Apache-2.0"],
        parameters={"temperature": 1, "top_k": 10, "stop": ["USER:", "ASSISTANT:"]},
        messages=[{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong <ok>"}],
    )
    expected = {
        modelinfo.MEDIA_GO_TEMPLATE: "fe7ac77b725cda2ccad03f88a880ecdfd7a33192d6cae08fce2c0ee1455991ed",
        modelinfo.MEDIA_SYSTEM: "f29e82a8284dbdf5910b1555580ff60b04238b8da9d5e51159ada67a4d0d5851",
        modelinfo.MEDIA_LICENSE: "2af71558e438db0b73a20beab92dc278a94e1bbe974c00c1a33e3ab62d53a608",
        modelinfo.MEDIA_PARAMS: "1d0ad71299d48c2fb7ae2b98e683643e771f8a5b72be34942af90d97a91c1e37",
        modelinfo.MEDIA_MESSAGES: "dda928e358ba699ea9b0c83bf0c66867e20846ceb8d0c3b1ef6e18d66fb42f5b",
    }
    assert {media_type: digest_of(store, "m", media_type) for media_type in expected} == expected
    info = read_model(store, parse_name("m"))
    assert info.licenses == ["MIT", "Apache-2.0"]
    assert info.template.kind == "go"


async def test_from_a_model_merges_replaces_and_appends(store: Store, renderer: Renderer) -> None:
    await made(
        store,
        renderer,
        files=upload(store),
        system="Say hi!",
        license="MIT",
        parameters={"temperature": 1, "top_k": 10, "stop": ["USER:", "ASSISTANT:"]},
        messages=[{"role": "user", "content": "old"}],
    )
    base = store.read(parse_name("m"))
    await made(
        store,
        renderer,
        model="n",
        **{"from": "m"},
        system="Say bye!",
        license=["MIT", "Apache-2.0"],  # as the Modelfile of m says: it is not there twice
        parameters={"temperature": 0.6, "top_p": 0.7},
        messages=[{"role": "user", "content": "new"}],
    )
    info = read_model(store, parse_name("n"))
    assert digest_of(store, "n", modelinfo.MEDIA_SYSTEM).startswith("4c5f51faac75")
    assert digest_of(store, "n", modelinfo.MEDIA_PARAMS).startswith("e29a7b3c4728")
    assert info.licenses == ["MIT", "Apache-2.0"]
    assert info.messages == [{"role": "user", "content": "new"}]
    assert info.details["parent_model"] == "m:latest"
    assert info.manifest.config.digest == base.config.digest
    assert info.template.text == JINJA
    await made(store, renderer, model="o", **{"from": "n"}, parameters={"stop": ["<|endoftext|>"]})
    assert digest_of(store, "o", modelinfo.MEDIA_PARAMS).startswith("12f58bb75cb3")


async def test_empty_fields_inherit(store: Store, renderer: Renderer) -> None:
    await made(store, renderer, files=upload(store), system="Say hi!")
    await made(
        store, renderer, model="n", **{"from": "M"}, system="", template="", parameters={}, messages=[]
    )
    assert read_model(store, parse_name("n")).system == "Say hi!"


async def test_overwriting_drops_what_only_the_old_one_needed(store: Store, renderer: Renderer) -> None:
    await made(store, renderer, files=upload(store), system="Say hi!")
    old = digest_of(store, "m", modelinfo.MEDIA_SYSTEM)
    await made(store, renderer, **{"from": "m"}, system="Say bye!")
    assert not store.blobs.has(f"sha256:{old}")
    assert len(files_in(store)) == len(store.read(parse_name("m")).blobs)


async def test_a_model_without_template_says_so(store: Store, renderer: Renderer) -> None:
    statuses = await made(store, renderer, files=upload(store, BARE))
    assert {"status": "no chat template found, prompts will be sent as they are"} in statuses
    assert read_model(store, parse_name("m")).template.kind == "none"


async def test_two_creates_may_share_an_upload(store: Store, renderer: Renderer) -> None:
    files = upload(store)
    first = create(store, check_request({"model": "a", "files": files}), renderer)
    await anext(first)
    second = [s async for s in create(store, check_request({"model": "b", "files": files}), renderer)]
    rest = [s async for s in first]
    assert second[-1] == rest[-1] == {"status": "success"}
    assert not store.blobs.has(files["model.gguf"])
    assert store.read(parse_name("a")).config.digest == store.read(parse_name("b")).config.digest


async def test_a_missing_base_is_pulled(store: Store, renderer: Renderer) -> None:
    async def pull(name: ModelName) -> AsyncIterator[dict[str, Any]]:
        yield {"status": "pulling manifest"}
        async for _ in create(store, check_request({"model": name.full, "files": upload(store)}), renderer):
            pass
        yield {"status": "success"}

    operation = create(store, check_request({"model": "m", "from": "far"}), renderer, pull)
    statuses = [status["status"] async for status in operation]
    assert statuses[0] == "pulling manifest"
    assert statuses.count("success") == 1
    assert store.has(parse_name("m")) and store.has(parse_name("far"))


def foreign(store: Store, template: str = "{{ .Prompt }}") -> None:
    """Store a model as Ollama's library has it: GGUF and Go template."""

    def layer(media_type: str, data: bytes) -> Descriptor:
        return Descriptor(media_type, *store.blobs.put(data))

    config = layer("application/vnd.docker.container.image.v1+json", b'{"model_format":"gguf"}\n')
    layers = [layer(modelinfo.MEDIA_GGUF, MODEL), layer(modelinfo.MEDIA_GO_TEMPLATE, template.encode())]
    store.write(parse_name("m"), build_manifest(config, layers))


async def test_a_pulled_gguf_model_is_converted(store: Store, renderer: Renderer) -> None:
    foreign(store)
    with pytest.raises(Unsupported, match="not stored as FTW"):
        read_model(store, parse_name("m"))
    statuses = [status["status"] async for status in convert(store, parse_name("m"), renderer)]
    assert statuses[0] == "parsing GGUF" and "success" not in statuses
    info = read_model(store, parse_name("m"))
    assert info.template.text == "{{ .Prompt }}"
    assert not any(layer.media_type == modelinfo.MEDIA_GGUF for layer in info.manifest.layers)
    assert len(files_in(store)) == len(info.manifest.blobs)
    assert [status async for status in convert(store, parse_name("m"), renderer)] == []


async def test_local_progress_carries_the_digest_that_clients_know() -> None:
    assert create_module.LOCAL_DIGEST == "0000000000000000000"


# What llama-tokenize of llama.cpp gives for the prompt as text
FRANCE = [
    *(
        1,
        9690,
        198,
        2683,
        359,
        253,
        5356,
        5646,
        11173,
        3365,
        3511,
        308,
        34519,
        28,
        7018,
        411,
        407,
        19712,
        8182,
        2,
    ),
    *(198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198),
]


@pytest.mark.slow
async def test_a_real_model_prompts_as_in_llama_cpp(
    smollm2_gguf: Path, store: Store, renderer: Renderer
) -> None:
    await made(store, renderer, files=upload(store, await asyncio.to_thread(smollm2_gguf.read_bytes)))
    info = read_model(store, parse_name("m"))
    tokenizer = modelinfo.read_tokenizer(store, info)
    control = tokenizer.control_texts(info.template.text)
    template = ChatTemplate(info.template.text, renderer, kind=info.template.kind, control=control)
    rendered = await template.render([{"role": "user", "content": "What is the capital of France?"}])
    assert tokenizer.encode_rendered(rendered) == FRANCE
    assert info.details["quantization_level"] == "Q4_1"
    assert tokenizer.eos_ids == {0, 2}

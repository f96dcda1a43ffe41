"""Models ready to be talked to: what the store says of one, its tokenizer, its chat template.

Keyed by manifest digest, so a model that is created or pulled anew is read anew; the last few are kept.
"""

import asyncio
import logging
from collections import OrderedDict
from typing import Any

import msgspec
from msgspec.structs import replace

from ftd import log
from ftd.chat.renderer import Renderer
from ftd.chat.templates import ChatTemplate
from ftd.chat.tokenizer import Tokenizer
from ftd.daemon import modelinfo
from ftd.daemon.modelinfo import ModelInfo
from ftd.errors import FtdError, InvalidName, ModelNotFound
from ftd.names import ModelName, parse_name
from ftd.registry.manifest import Manifest
from ftd.registry.store import Store

logger = logging.getLogger(__name__)

_KEPT_MODELS = 4
# The tokenizers library does not release the interpreter for the tenth of a second in which it reads a
# vocabulary; processes that work beside it are started before
_HEAD_START_S = 0.01
_UNKNOWN_DETAILS: dict[str, Any] = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": None,
    "parameter_size": "",
    "quantization_level": "",
}


class Model(msgspec.Struct, frozen=True):
    """One model: its description, its vocabulary and its template."""

    info: ModelInfo
    tokenizer: Tokenizer
    template: ChatTemplate

    def can(self, capability: str) -> bool:
        """Say whether the model has a capability of Ollama's list."""
        return capability in self.info.capabilities


class Catalog:
    """Finds models by the names that clients write. Lives on one event loop; owns the renderer."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.renderer = Renderer()
        self._models: OrderedDict[str, Model] = OrderedDict()
        self._lock = asyncio.Lock()
        self._starting: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """End the renderer's process."""
        await self.renderer.close()

    async def find(self, text: str, missing: str = "model '{}' not found") -> tuple[ModelName, Manifest]:
        """Return the stored spelling and the manifest of a model; raise ModelNotFound or InvalidName.

        ``missing``: the wording of the error; the braces are replaced by the name as the client wrote it.
        """
        if not text:
            raise ModelNotFound(missing.format(text))
        name = parse_model_name(text)

        def read() -> tuple[ModelName, Manifest]:
            found = self.store.resolve(name)
            return found, self.store.read(found)

        try:
            return await asyncio.to_thread(read)
        except ModelNotFound as exc:
            raise ModelNotFound(missing.format(text), f"ftd pull {name.display}") from exc

    async def begin(self, text: str) -> "tuple[ModelInfo, asyncio.Future[Model]]":
        """Return what the store says of a model, and the model itself to come.

        Its tokenizer is read and its template's process starts meanwhile; nobody need wait for them.
        """
        name, manifest = await self.find(text)
        model = self._models.get(manifest.digest)
        if model is not None:
            done: asyncio.Future[Model] = asyncio.get_running_loop().create_future()
            done.set_result(self._named(model, name))
            return done.result().info, done
        info = await asyncio.to_thread(modelinfo.info_of, self.store, name, manifest, tokenizer=False)
        coming = asyncio.create_task(self._get_later(name, manifest))
        coming.add_done_callback(_seen)
        if info.template.kind != "none":
            self._starting = asyncio.create_task(self.renderer.start())
            self._starting.add_done_callback(_seen)
        return info, coming

    async def _get_later(self, name: ModelName, manifest: Manifest) -> Model:
        await asyncio.sleep(_HEAD_START_S)
        return await self._get(name, manifest)

    async def get(self, text: str, missing: str = "model '{}' not found") -> Model:
        """Return a model with its tokenizer and template, read on first use."""
        return await self._get(*await self.find(text, missing))

    async def _get(self, name: ModelName, manifest: Manifest) -> Model:
        model = self._models.get(manifest.digest)
        if model is None:
            async with self._lock:
                model = self._models.get(manifest.digest)
                if model is None:
                    model = await asyncio.to_thread(self._read, name, manifest)
                    self._models[manifest.digest] = model
                    while len(self._models) > _KEPT_MODELS:
                        self._models.popitem(last=False)
        return self._named(model, name)

    def _named(self, model: Model, name: ModelName) -> Model:
        """Return a kept model under the name that it was asked for by."""
        self._models.move_to_end(model.info.digest)
        return model if model.info.name == name else replace(model, info=replace(model.info, name=name))

    def _read(self, name: ModelName, manifest: Manifest) -> Model:
        info = modelinfo.info_of(self.store, name, manifest)
        tokenizer = Tokenizer.from_json(info.tokenizer_json, info.config.tokens)
        return Model(info, tokenizer, self.template(info, tokenizer, info.template.kind, info.template.text))

    def template(self, info: ModelInfo, tokenizer: Tokenizer, kind: str, source: str) -> ChatTemplate:
        """Return a template for a model: its own, or one that a request brings."""
        tokens = info.config.tokens
        return ChatTemplate(
            source,
            self.renderer,
            kind=kind,
            bos_token=tokenizer.token_text(tokens.bos_id),
            eos_token=tokenizer.token_text(tokens.eos_ids[0] if tokens.eos_ids else None),
            control=tokenizer.control_texts(source),
        )


def _seen(task: "asyncio.Task[Any]") -> None:
    """Take note of an error that nobody waited for; the next to ask meets it again."""
    if not task.cancelled():
        task.exception()


def parse_model_name(text: str) -> ModelName:
    """Parse a name that a client sent; raise InvalidName with Ollama's wording."""
    try:
        return parse_name(text)
    except InvalidName as exc:
        raise InvalidName("invalid model name", exc.hint or exc.message) from exc


class Summaries:
    """Details and capabilities of stored models for lists; kept by manifest digest. Any thread may call."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_digest: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {}

    def get(self, name: ModelName, manifest: Manifest) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return ``details`` and capabilities; of a model we cannot read, what its manifest shows."""
        digest = manifest.digest
        if digest not in self._by_digest:
            try:
                info = modelinfo.info_of(self._store, name, manifest, tokenizer=False)
                summary = (info.details, info.capabilities)
            except FtdError as exc:
                logger.warning(log.fields("model not readable", model=name.display, error=exc.message))
                summary = (_UNKNOWN_DETAILS, ())
            self._by_digest[digest] = summary
        return self._by_digest[digest]

"""Models ready to be talked to: what the store says of one, its tokenizer, its chat template.

Keyed by manifest digest, so a model that is created or pulled anew is read anew; the last few are kept.
"""

import asyncio
import logging
from collections import OrderedDict
from typing import Any, TypeVar

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

_T = TypeVar("_T")

NOT_FOUND = "model '{}' not found"
_KEPT_MODELS = 4
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
        self._infos: OrderedDict[str, ModelInfo] = OrderedDict()
        self._models: OrderedDict[str, Model] = OrderedDict()
        self._lock = asyncio.Lock()
        self._parsing: asyncio.Task[list[str]] | None = None

    async def close(self) -> None:
        """End the renderer's process."""
        await self.renderer.close()

    async def find(self, text: str, missing: str = NOT_FOUND) -> tuple[ModelName, Manifest]:
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

    async def info(self, text: str, missing: str = NOT_FOUND) -> ModelInfo:
        """Return what the store says of a model; nothing of it is read but small blobs."""
        return await self._info(*await self.find(text, missing))

    async def _info(self, name: ModelName, manifest: Manifest) -> ModelInfo:
        info = self._infos.get(manifest.digest)
        if info is None:
            info = await asyncio.to_thread(modelinfo.info_of, self.store, name, manifest)
            _keep(self._infos, manifest.digest, info)
        return info if info.name == name else replace(info, name=name)

    async def begin(self, text: str) -> "tuple[ModelInfo, asyncio.Future[Model]]":
        """Return what the store says of a model, and the model itself to come.

        Its tokenizer is read and its template parsed meanwhile; nobody need wait for them.
        """
        info = await self.info(text)
        if info.digest in self._models:
            done: asyncio.Future[Model] = asyncio.get_running_loop().create_future()
            done.set_result(await self._model(info))
            return info, done
        coming = asyncio.create_task(self._model_later(info))
        coming.add_done_callback(_seen)
        return info, coming

    async def _model_later(self, info: ModelInfo) -> Model:
        # The tokenizers library keeps the interpreter while it reads a vocabulary. So first comes a turn of
        # the loop in which the engine is told what to load, and one in which the renderer's process starts
        await asyncio.sleep(0)
        if info.template.kind != "none":
            self._parsing = asyncio.create_task(
                self.renderer.literals(info.template.kind, info.template.text)
            )
            self._parsing.add_done_callback(_seen)
            await asyncio.sleep(0)
        return await self._model(info)

    async def get(self, text: str, missing: str = NOT_FOUND) -> Model:
        """Return a model with its tokenizer and template, read on first use."""
        return await self._model(await self.info(text, missing))

    async def _model(self, info: ModelInfo) -> Model:
        model = self._models.get(info.digest)
        if model is None:
            async with self._lock:
                model = self._models.get(info.digest) or await self._read(info)
        _keep(self._models, info.digest, model)
        return model if model.info.name == info.name else replace(model, info=info)

    async def _read(self, info: ModelInfo) -> Model:
        tokenizer = await asyncio.to_thread(modelinfo.read_tokenizer, self.store, info)
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


def _keep(kept: OrderedDict[str, _T], digest: str, value: _T) -> None:
    """Put a value last, and drop the first of too many."""
    kept[digest] = value
    kept.move_to_end(digest)
    while len(kept) > _KEPT_MODELS:
        kept.popitem(last=False)


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
                info = modelinfo.info_of(self._store, name, manifest)
                summary = (info.details, info.capabilities)
            except FtdError as exc:
                logger.warning(log.fields("model not readable", model=name.display, error=exc.message))
                summary = (_UNKNOWN_DETAILS, ())
            self._by_digest[digest] = summary
        return self._by_digest[digest]

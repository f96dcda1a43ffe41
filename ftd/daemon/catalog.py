"""Models ready to be talked to: what the store says of one, its tokenizer, its chat template.

Keyed by manifest digest, so a model that is created or pulled anew is read anew; the last few are kept.
"""

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

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
_UNKNOWN_DETAILS: dict[str, Any] = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": None,
    "parameter_size": "",
    "quantization_level": "",
}


@dataclass(frozen=True, slots=True)
class Model:
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

    async def get(self, text: str, missing: str = "model '{}' not found") -> Model:
        """Return a model with its tokenizer and template, read on first use."""
        name, manifest = await self.find(text, missing)
        model = self._models.get(manifest.digest)
        if model is None:
            async with self._lock:
                model = self._models.get(manifest.digest)
                if model is None:
                    model = await asyncio.to_thread(self._read, name, manifest)
                    self._models[manifest.digest] = model
                    while len(self._models) > _KEPT_MODELS:
                        self._models.popitem(last=False)
        self._models.move_to_end(manifest.digest)
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

"""The catalog over a store of tiny models: found whatever the case, read once, read anew when it changed."""

import asyncio

import pytest
from tiny_model import add_model

from ftd.daemon.catalog import Catalog, Summaries
from ftd.errors import InvalidName, ModelNotFound
from ftd.names import parse_name
from ftd.registry.store import Store


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    add_model(store, "tiny")
    return store


@pytest.fixture
async def catalog(store):
    catalog = Catalog(store)
    yield catalog
    await catalog.close()


async def test_models_are_read_once_also_when_asked_for_together(catalog):
    first, *others = await asyncio.gather(*(catalog.get(name) for name in ("tiny", "TINY", "tiny:latest")))
    assert all(other.tokenizer is first.tokenizer for other in others)
    assert first.can("completion") and not first.can("tools")


async def test_two_names_share_what_was_read_and_keep_their_names(catalog, store):
    store.copy(parse_name("tiny"), parse_name("mine"))
    first, second = await catalog.get("tiny"), await catalog.get("mine")
    assert second.tokenizer is first.tokenizer
    assert (first.info.name.model, second.info.name.model) == ("tiny", "mine")


async def test_changed_model_is_read_anew(catalog, store):
    before = await catalog.get("tiny")
    add_model(store, "tiny", system="new")
    after = await catalog.get("tiny")
    assert (before.info.system, after.info.system) == ("", "new")


async def test_only_a_few_are_kept(catalog, store):
    for seed in range(6):
        add_model(store, f"m{seed}", seed=seed)
        await catalog.get(f"m{seed}")
    assert len(catalog._models) == 4


@pytest.mark.parametrize(
    ("name", "error"), [("nope", ModelNotFound), ("", ModelNotFound), ("a b", InvalidName)]
)
async def test_errors_carry_the_name_as_written(catalog, name, error):
    with pytest.raises(error) as caught:
        await catalog.get(name, "no <{}>")
    assert str(caught.value) == ("invalid model name" if error is InvalidName else f"no <{name}>")


def test_summary_of_a_model_with_a_missing_blob_is_empty(store):
    manifest = store.read(parse_name("tiny"))
    store.blobs.remove(manifest.config.digest)
    details, capabilities = Summaries(store).get(parse_name("tiny"), manifest)
    assert (details["family"], capabilities) == ("", ())


async def test_a_model_can_be_begun_before_it_is_there(catalog):
    info, coming = await catalog.begin("tiny")
    assert not coming.done() and info.capabilities
    model = await coming
    assert (model.info.digest, model.info.capabilities) == (info.digest, info.capabilities)
    again, done = await catalog.begin("tiny")
    assert done.done() and again is done.result().info and done.result() is model

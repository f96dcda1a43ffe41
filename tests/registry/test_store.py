"""The store: by example, against a slow model (a dict of names), under threads that delete and write."""

import os
import threading
import time
from pathlib import Path

import pytest
from examples import examples
from faulty_registry import digest_of, files_in
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ftd.errors import BlobNotFound, CorruptData, InvalidRequest, ModelNotFound
from ftd.names import ModelName, parse_name
from ftd.registry.manifest import Descriptor, Manifest, build_manifest
from ftd.registry.store import STALE_S, Store


def manifest_in(store: Store, *contents: bytes) -> Manifest:
    """Put blobs into a store and return a manifest of them; the first is the config."""
    entries = [Descriptor("t", *store.blobs.put(data)) for data in contents]
    return build_manifest(entries[0], entries[1:])


def manifest_path(store: Store, *parts: str) -> Path:
    return store.models_dir.joinpath("manifests", *parts)


def age(path: Path, seconds: float) -> None:
    when = time.time() - seconds
    os.utime(path, (when, when))


def test_a_model_is_kept_byte_for_byte_in_the_tree_of_its_name(store: Store) -> None:
    manifest = manifest_in(store, b"config", b"layer")
    store.write(parse_name("h:5000/ns/m:t"), manifest)
    assert manifest_path(store, "h:5000", "ns", "m", "t").read_bytes() == manifest.raw
    assert store.read(parse_name("h:5000/ns/m:t")) == manifest


def test_a_missing_model_is_not_found_with_what_to_do(store: Store) -> None:
    with pytest.raises(ModelNotFound, match="model 'm:latest' not found") as caught:
        store.read(parse_name("m"))
    assert caught.value.hint == "ftd pull m:latest"
    for call in (store.delete, lambda name: store.copy(name, parse_name("n"))):
        with pytest.raises(ModelNotFound):
            call(parse_name("m"))


def test_case_is_kept_and_ignored(store: Store) -> None:
    manifest = manifest_in(store, b"config")
    store.write(parse_name("NS/Model:Tag"), manifest)
    assert store.resolve(parse_name("ns/mODEL:tAG")) == parse_name("NS/Model:Tag")
    assert store.read(parse_name("ns/model:tag")) == manifest
    store.write(parse_name("ns/model:TAG"), manifest)
    store.write(parse_name("ns/model:other"), manifest)
    assert sorted(model.name.display for model in store.list()) == ["NS/Model:Tag", "NS/Model:other"]
    assert store.has(parse_name("ns/MODEL:OTHER"))


def test_the_list_is_newest_first_and_skips_what_does_not_parse(store: Store) -> None:
    for index, text in enumerate(("old", "new", "middle")):
        store.write(parse_name(text), manifest_in(store, text.encode()))
        age(manifest_path(store, "registry.ollama.ai", "library", text, "latest"), (9, 1, 5)[index])
    store.write(parse_name("broken"), manifest_in(store, b"x"))
    manifest_path(store, "registry.ollama.ai", "library", "broken", "latest").write_bytes(b"{")
    manifest_path(store, "registry.ollama.ai", "library", "old", ".hidden").write_bytes(b"{}")
    manifest_path(store, "stray").write_bytes(b"{}")
    manifest_path(store, "-host", "a", "b").mkdir(parents=True)
    manifest_path(store, "-host", "a", "b", "c").write_bytes(b"{}")
    models = store.list()
    assert [model.name.model for model in models] == ["new", "middle", "old"]
    assert all(model.modified.tzinfo is not None for model in models)
    assert all(store.modified(model.name) == model.modified for model in models)
    with pytest.raises(ModelNotFound):
        store.modified(parse_name("nope"))
    with pytest.raises(CorruptData, match="manifest of broken:latest"):
        store.read(parse_name("broken"))


def test_a_copy_has_the_same_bytes_and_may_overwrite_or_be_onto_itself(store: Store) -> None:
    manifest = manifest_in(store, b"config")
    store.write(parse_name("a"), manifest)
    store.write(parse_name("b"), manifest_in(store, b"other"))
    store.copy(parse_name("a"), parse_name("b"))
    store.copy(parse_name("a"), parse_name("A"))
    assert [store.read(parse_name(text)).raw for text in "ab"] == [manifest.raw] * 2
    assert len(store.list()) == 2


def test_deleting_removes_blobs_nobody_else_needs_and_empty_folders(store: Store) -> None:
    store.write(parse_name("a"), manifest_in(store, b"config", b"shared", b"only a"))
    store.write(parse_name("h/x/b"), manifest_in(store, b"config", b"shared"))
    assert store.delete(parse_name("A")) == [digest_of(b"only a")]
    assert not manifest_path(store, "registry.ollama.ai").exists()
    assert set(store.blobs.digests()) == {digest_of(b"config"), digest_of(b"shared")}
    assert len(store.delete(parse_name("h/x/b"))) == 2
    assert (files_in(store.blobs.folder), list(manifest_path(store).iterdir())) == ([], [])


def test_a_held_blob_outlives_the_model(store: Store) -> None:
    store.write(parse_name("a"), manifest_in(store, b"config", b"layer"))
    with store.hold([digest_of(b"layer")]), store.hold([digest_of(b"layer")]):
        assert store.delete(parse_name("a")) == [digest_of(b"config")]
    assert store.blobs.has(digest_of(b"layer"))
    assert store.prune([digest_of(b"layer")]) == [digest_of(b"layer")]


def test_a_broken_manifest_protects_every_blob_it_mentions(store: Store) -> None:
    store.write(parse_name("a"), manifest_in(store, b"config", b"layer"))
    store.copy(parse_name("a"), parse_name("b"))
    path = manifest_path(store, "registry.ollama.ai", "library", "b", "latest")
    path.write_bytes(path.read_bytes()[:-2])
    assert store.delete(parse_name("a")) == []


def test_a_broken_model_can_be_deleted(store: Store) -> None:
    store.write(parse_name("a"), manifest_in(store, b"config"))
    manifest_path(store, "registry.ollama.ai", "library", "a", "latest").write_bytes(b"{")
    store.delete(parse_name("a"))
    assert not store.has(parse_name("a"))


def test_a_manifest_is_refused_while_a_blob_is_missing_or_of_another_size(store: Store) -> None:
    manifest = manifest_in(store, b"config", b"layer")
    wrong = build_manifest(Descriptor("t", digest_of(b"config"), 7), [])
    with pytest.raises(InvalidRequest, match="has 6 bytes, the manifest says 7"):
        store.write(parse_name("a"), wrong)
    store.blobs.remove(digest_of(b"layer"))
    with pytest.raises(BlobNotFound):
        store.write(parse_name("a"), manifest)
    assert store.list() == []
    assert list(manifest_path(store).rglob("*")) == []


def test_tags_are_those_of_one_repository(store: Store) -> None:
    manifest = manifest_in(store, b"config")
    for text in ("m:b", "m:a", "n:c", "other/m:d"):
        store.write(parse_name(text), manifest)
    assert store.tags(parse_name("m")) == ["a", "b"]


def test_the_sweep_removes_what_is_dead_and_old_only(store: Store) -> None:
    store.write(parse_name("a"), manifest_in(store, b"config"))
    young, _ = store.blobs.put(b"young")
    age(store.blobs.path(young), STALE_S - 60)
    old, _ = store.blobs.put(b"old")
    for digest in (old, digest_of(b"config")):
        age(store.blobs.path(digest), STALE_S + 1)
    names = {
        "writing-dead": 1, "upload-" + "0" * 32: 10, "upload-" + "1" * 32: 86401,
        "sha256-x-partial": 86400, "sha256-y-partial": 15 * 86400, "foreign": 10**7,
    }  # fmt: skip
    for name, seconds in names.items():
        (store.blobs.folder / name).write_bytes(b"x")
        age(store.blobs.folder / name, seconds)
    done = f"{digest_of(b'config').replace(':', '-')}-partial"
    (store.blobs.folder / done).write_bytes(b"x")
    (manifest_path(store, "registry.ollama.ai", "library", "a") / ".writing-x").write_bytes(b"")
    manifest_path(store, "empty", "a", "b").mkdir(parents=True)
    writer = store.blobs.new()
    removed = {path.name for path in store.sweep()}
    writer.write(b"alive")
    writer.commit()
    gone = {
        "writing-dead",
        "upload-" + "1" * 32,
        "sha256-y-partial",
        old.replace(":", "-"),
        ".writing-x",
        done,
    }
    assert removed == gone
    assert not manifest_path(store, "empty").exists()
    assert {digest_of(b"young"), digest_of(b"alive"), digest_of(b"config")} == set(store.blobs.digests())


def test_the_sweep_removes_no_blob_while_a_manifest_is_broken_or_if_told(store: Store) -> None:
    old, _ = store.blobs.put(b"old")
    age(store.blobs.path(old), STALE_S + 1)
    assert store.sweep(prune=False) == []
    store.write(parse_name("a"), manifest_in(store, b"config"))
    path = manifest_path(store, "registry.ollama.ai", "library", "a", "latest")
    path.write_bytes(b"{")
    assert store.sweep() == []
    path.unlink()
    assert [found.name for found in store.sweep()] == [old.replace(":", "-")]


def test_no_model_loses_a_blob_while_threads_write_and_delete(store: Store) -> None:
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            name = parse_name(f"m{index}")
            for turn in range(12):
                contents = [b"config", b"shared", f"{turn % 3}".encode()]
                with store.hold(map(digest_of, contents)):
                    store.write(name, manifest_in(store, *contents))
                for entry in store.read(name).blobs:
                    assert store.blobs.read(entry.digest) in contents
                store.delete(name)
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert store.list() == []
    assert files_in(store.blobs.folder) == []


class StoreMachine(RuleBasedStateMachine):
    """The store against a dict from names in lower case to (spelling, contents)."""

    names = st.sampled_from(["a", "A", "n/a", "N/A:x", "h/n/a", "b:X"])
    contents = st.lists(st.sampled_from([b"c1", b"c2", b"l1", b"l2"]), min_size=1, max_size=3)

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(self.new_folder())
        self.store = Store(self.folder)
        self.model: dict[str, list[bytes]] = {}

    new_folder = staticmethod(lambda: "")

    @rule(text=names, contents=contents)
    def write(self, text: str, contents: list[bytes]) -> None:
        self.store.write(parse_name(text), manifest_in(self.store, *contents))
        self.model[parse_name(text).key] = contents

    @rule(source=names, destination=names)
    def copy(self, source: str, destination: str) -> None:
        if parse_name(source).key in self.model:
            self.store.copy(parse_name(source), parse_name(destination))
            self.model[parse_name(destination).key] = self.model[parse_name(source).key]
        else:
            with pytest.raises(ModelNotFound):
                self.store.copy(parse_name(source), parse_name(destination))

    @rule(text=names)
    def delete(self, text: str) -> None:
        if self.model.pop(parse_name(text).key, None) is not None:
            self.store.delete(parse_name(text))
        else:
            with pytest.raises(ModelNotFound):
                self.store.delete(parse_name(text))

    @rule()
    def sweep(self) -> None:
        self.store.sweep()

    @invariant()
    def names_and_blobs_are_those_of_the_model(self) -> None:
        assert {model.name.key for model in self.store.list()} == set(self.model)
        stored = set(self.store.blobs.digests())
        assert {digest_of(data) for contents in self.model.values() for data in contents} <= stored
        for key, contents in self.model.items():
            manifest = self.store.read(ModelName(*_parts(key)))
            assert manifest.config.digest == digest_of(contents[0])


def _parts(key: str) -> list[str]:
    rest, tag = key.rsplit(":", 1)
    return [*rest.split("/"), tag]


def test_the_store_behaves_like_a_dict_of_names(tmp_path_factory: pytest.TempPathFactory) -> None:
    class Machine(StoreMachine):
        new_folder = staticmethod(lambda: str(tmp_path_factory.mktemp("store")))

    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(Machine, settings=settings(max_examples=examples(15), stateful_step_count=12))

"""FreeToken indexes with random faults: each is read or refused with an error of ours; nothing is left."""

import json
from pathlib import Path
from typing import Any

import checkpoint_bytes
import pytest
from examples import examples
from freetoken_bytes import converted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_sink import MemorySink

from ftd.errors import FtdError
from ftd.ftw.import_safetensors import import_safetensors

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.text(max_size=20),
    st.lists(st.integers(-2, 1 << 40), max_size=9),
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A good folder of two shards."""
    config, arrays = checkpoint_bytes.mixtral()
    return converted(arrays).save(tmp_path_factory.mktemp("ftw") / "m", config, 1 << 16)


def brought_in(files: dict[str, Path], index: bytes, folder: Path) -> bool:
    """Say whether the folder with another index was read."""
    path = folder / "index"
    path.write_bytes(index)
    sink = MemorySink()
    try:
        import_safetensors(files | {"freetoken_weight.json": path}, sink)
    except FtdError:
        assert sink.blobs == {} and sink.open_writers == 0
        return False
    assert sink.open_writers == 0
    return True


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_wrong_value(data: st.DataObject, files: dict[str, Path], tmp_path: Path) -> None:
    index: Any = json.loads(files["freetoken_weight.json"].read_text())
    entries = [index, *index["shards"], *index["tensors"]]
    entry = data.draw(st.sampled_from(entries))
    entry[data.draw(st.sampled_from(sorted(entry)))] = data.draw(VALUES)
    brought_in(files, json.dumps(index).encode(), tmp_path)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 1 << 20), byte=st.binary(min_size=0, max_size=3))
def test_a_few_wrong_bytes(place: int, byte: bytes, files: dict[str, Path], tmp_path: Path) -> None:
    index = files["freetoken_weight.json"].read_bytes()
    place %= len(index)
    brought_in(files, index[:place] + byte + index[place + 1 :], tmp_path)


def test_the_folder_itself_is_good(files: dict[str, Path], tmp_path: Path) -> None:
    assert brought_in(files, files["freetoken_weight.json"].read_bytes(), tmp_path)

"""ftd.ftw.gguf_shards: the same model from one file, from any shard, and from all shards in any order."""

import itertools
from collections.abc import Callable
from pathlib import Path

import gguf_bytes
import numpy as np
import pytest

from ftd.errors import InvalidGguf
from ftd.ftw.gguf_shards import GgufModel

Save = Callable[[str, bytes], Path]


def shards(save: Save, count: int = 3, **changes: object) -> list[Path]:
    """Write ``count`` shards of two tensors each; ``changes`` replaces metadata of the last one."""
    random, paths = np.random.default_rng(0), []
    for number in range(count):
        split = {"split.no": number, "split.count": count, "split.tensors.count": 2 * count}
        metadata = {"general.architecture": "llama", **split} if number == 0 else split
        if number == count - 1:
            metadata |= changes
        tensors = [gguf_bytes.tensor(f"t{2 * number + index}", "Q8_0", (2, 32), random) for index in range(2)]
        paths.append(save(f"m-{number + 1:05}-of-{count:05}.gguf", gguf_bytes.gguf(metadata, tensors)))
    return paths


def test_any_shard_finds_the_others(save: Save) -> None:
    for path in shards(save):
        with GgufModel.open([path]) as model:
            assert [tensor.name for tensor in model.tensors] == [f"t{index}" for index in range(6)]
            assert model.metadata["general.architecture"] == "llama"


def test_shards_under_other_names_are_put_in_order(save: Save) -> None:
    renamed = [path.rename(path.with_name(f"sha256-{index}")) for index, path in enumerate(shards(save))]
    for order in itertools.permutations(renamed):
        with GgufModel.open(order) as model:
            assert [tensor.name for tensor in model.tensors] == [f"t{index}" for index in range(6)]


def test_a_missing_shard_is_named(save: Save) -> None:
    paths = shards(save)
    paths[1].unlink()
    with pytest.raises(InvalidGguf, match=r"shards are missing: m-00002-of-00003\.gguf"):
        GgufModel.open([paths[0]])


def test_a_lone_shard_under_another_name_asks_for_the_rest(save: Save) -> None:
    path = shards(save)[0]
    with pytest.raises(InvalidGguf, match="one of 3 shards"):
        GgufModel.open([path.rename(path.with_name("x.gguf"))])


def test_whole_models_are_no_shards_of_another(save: Save) -> None:
    paths = [save("a.gguf", gguf_bytes.gguf(*gguf_bytes.model())), *shards(save)]
    with pytest.raises(InvalidGguf, match="4 GGUF files are given, and one of them is a whole model"):
        GgufModel.open(paths)


def test_wrong_sets_are_refused(save: Save) -> None:
    first, second, third = shards(save)
    for paths in ([first, second], [first, second, second], [first, second, third, third]):
        with pytest.raises(InvalidGguf, match="shards"):
            GgufModel.open(paths)
    with pytest.raises(InvalidGguf, match="no GGUF file given"):
        GgufModel.open([])


@pytest.mark.parametrize(
    "changes", [{"split.no": 7}, {"split.count": 4}, {"split.no": "2"}, {"split.no": True}]
)
def test_a_shard_that_lies_about_its_place_is_refused(save: Save, changes: dict[str, object]) -> None:
    with pytest.raises(InvalidGguf):
        GgufModel.open([shards(save, **changes)[0]])


@pytest.mark.parametrize("count", [0, -1, 1 << 20, "3"])
def test_impossible_shard_counts_are_refused(save: Save, count: object) -> None:
    path = save("m.gguf", gguf_bytes.gguf({"split.count": count}))
    with pytest.raises(InvalidGguf, match=r"split\.count"):
        GgufModel.open([path])


def test_a_tensor_in_two_shards_is_refused(save: Save) -> None:
    tensor = gguf_bytes.tensor("t", "F32", (1, 4), np.random.default_rng(0))
    paths = [
        save(
            f"m-0000{number + 1}-of-00002.gguf",
            gguf_bytes.gguf({"split.no": number, "split.count": 2}, [tensor]),
        )
        for number in range(2)
    ]
    with pytest.raises(InvalidGguf, match="in two shards"):
        GgufModel.open(paths)


def test_a_wrong_number_of_tensors_is_refused(save: Save) -> None:
    path = save("m.gguf", gguf_bytes.gguf({"split.tensors.count": 5}))
    with pytest.raises(InvalidGguf, match="0 tensors instead of 5"):
        GgufModel.open([path])

"""The file of measured splits: what is written is read, and nothing broken in it is trusted."""

import msgspec
import pytest

from ftd.engine import expert_store
from ftd.kernels.expert_split import POINTS, PROMPT_POINTS, Point


def points(fetched: int = 1) -> list[Point]:
    """Two measured layers."""
    return [
        Point(tokens=1, misses=m, fetched=fetched, seconds=1e-4, fetch_seconds=2e-4, run_seconds=3e-4)
        for m in (1, 4)
    ]


def test_what_is_written_is_read() -> None:
    assert expert_store.read("a", 8) is None
    expert_store.write("a", points())
    expert_store.write("b", points(0))
    assert expert_store.read("a", 8) == points() and expert_store.read("b", 8) == points(0)
    expert_store.write("a", points(0))
    assert expert_store.read("a", 8) == points(0) and expert_store.read("c", 8) is None


@pytest.mark.parametrize("places", [(1, 0), (0, 0), (0, 1, 1)])
def test_points_in_another_order_than_they_are_measured_in_make_no_table(places: tuple[int, ...]) -> None:
    expert_store.write("a", [points()[place] for place in places])
    assert expert_store.read("a", 8) is None


def test_what_is_measured_is_in_that_order() -> None:
    """Else it would be measured anew with each load."""
    measured = [
        (tokens, misses) for table in (POINTS, PROMPT_POINTS) for tokens in table for misses in table[tokens]
    ]
    assert measured == sorted(set(measured))


def test_old_keys_make_room() -> None:
    for number in range(expert_store.MAX_KEYS + 2):
        expert_store.write(str(number), points())
    assert expert_store.read("1", 8) is None and expert_store.read("2", 8) is not None
    assert [each.name for each in expert_store.path().parent.iterdir()] == ["experts.json"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"a": 3}', b'{"a": [{"tokens": 1}]}', b"[" * 5000, b" " * (expert_store.MAX_BYTES + 1)],
)
def test_a_broken_file_is_measured_anew(content: bytes) -> None:
    expert_store.write("b", points())
    expert_store.path().write_bytes(content)
    assert expert_store.read("a", 8) is None
    expert_store.write("a", points())
    assert expert_store.read("a", 8) == points()


@pytest.mark.parametrize(
    ("name", "value"), [("misses", 9), ("fetched", 5), ("fetched", -1), ("seconds", 0.0), ("tokens", 0)]
)
def test_impossible_points_are_not_used(name: str, value: float) -> None:
    kept = msgspec.to_builtins(points())
    kept[1][name] = value
    expert_store.path().parent.mkdir(parents=True)
    expert_store.path().write_bytes(msgspec.json.encode({"a": kept}))
    assert expert_store.read("a", 8) is None


def test_a_folder_that_cannot_be_written_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    expert_store.path().parent.parent.mkdir(parents=True, exist_ok=True)
    expert_store.path().parent.write_bytes(b"in the way")
    expert_store.write("a", points())
    assert "not kept" in caplog.text

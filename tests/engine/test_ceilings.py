"""Rates of the machine: what is read against files of known length, experts in Triton's interpreter."""

import functools
import json
from pathlib import Path

import pytest

from ftd.engine import ceilings, devices
from ftd.ftw.reader import READ_BYTES
from ftd.kernels import bandwidth, cpu


@pytest.fixture(autouse=True)
def small_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the bandwidth over a megabyte: the machine's memory is not what is tested."""
    monkeypatch.setattr(
        bandwidth, "measure", functools.partial(bandwidth.measure, num_bytes=1 << 20, passes=1)
    )


@pytest.mark.parametrize("size", [4097, READ_BYTES, 9 * READ_BYTES + 4095])
def test_every_block_of_a_file_is_read_once(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[tuple[int, int]] = []
    read_run = ceilings.direct.read_run

    def counted(descriptor: int, target: memoryview, start: int, name: str) -> None:
        runs.append((start, len(target)))
        read_run(descriptor, target, start, name)

    monkeypatch.setattr(ceilings.direct, "read_run", counted)
    (tmp_path / "blob").write_bytes(b"x" * size)
    rate = ceilings.disk(tmp_path / "blob")
    ends = [0, *(start + length for start, length in sorted(runs))]
    assert [start for start, _ in sorted(runs)] == ends[:-1] and ends[-1] == size // 4096 * 4096
    assert rate.bytes_per_s > 0


def test_without_a_card_there_are_memory_and_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devices, "missing_for_cuda", lambda: ("none", "buy one"))
    (tmp_path / "blob").write_bytes(b"x" * 5000)
    assert ceilings.main([str(tmp_path / "blob")]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    memory = 1 if len(cpu.usable_cores()) == 1 else 2
    assert [row["name"] for row in rows] == ["memory read"] * memory + ["disk read"]


def test_a_blob_that_is_gone_ends_the_rows_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "blob").write_bytes(b"x" * 5000)

    def cut(descriptor: int, target: memoryview, start: int, name: str) -> None:
        raise ceilings.FtdError("cannot read blob", "look at the disk")

    monkeypatch.setattr(ceilings.direct, "read_run", cut)
    assert ceilings.main([str(tmp_path / "blob")]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] and (found["error"], found["hint"]) == ("cannot read blob", "look at the disk")


@pytest.mark.slow
def test_both_paths_of_experts_have_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="pip install triton")
    sizes = {"NUM_EXPERTS": 8, "NUM_CHOSEN": 2, "HIDDEN_SIZE": 64, "INNER_SIZE": 64}
    for name, value in sizes.items():
        monkeypatch.setattr(ceilings, name, value)
    rows = list(ceilings.experts(devices.interpreter(), "q8_0"))
    paths = ["fill kernel", "fetched", "on the processor", "both at once"]
    assert [row.name for row in rows] == [f"q8_0 {path}" for path in paths]
    assert all(row.bytes_per_s > 0 for row in rows)

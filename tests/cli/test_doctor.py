"""``ftd doctor``: findings on this machine and on made-up ones."""

import json
from pathlib import Path

import pytest
from fake_api import FakeApi
from ports import free_port

from ftd import config
from ftd.cli import doctor


def findings(cli, **env: str) -> dict[str, dict[str, str]]:  # type: ignore[no-untyped-def]
    return {each["name"]: each for each in json.loads(cli("doctor", "--json", env=env).stdout)}


def test_it_looks_at_everything(cli, api: FakeApi, tmp_path: Path) -> None:
    found = findings(cli, FTD_MODELS=str(tmp_path / "models"))
    assert list(found) == [
        *("version", "settings", "cores", "processor", "device", "torch", "locked memory", "kernels"),
        *("memory", "store", "disk", "direct I/O", "daemon"),
    ]
    assert found["daemon"]["fact"] == f"answers at http://127.0.0.1:{api.port}, Ollama API 0.13.5"
    assert found["store"]["fact"] == f"{tmp_path}/models, 0 blobs, 0 B"


def test_the_text_has_one_line_a_finding_and_no_colours_in_a_pipe(cli) -> None:
    result = cli("doctor")
    assert result.returncode == 0 and "\x1b" not in result.stdout
    assert all(line.split()[0] in ("ok", "warning", "error") for line in result.stdout.splitlines())


def test_reference_kernels_are_a_warning(cli) -> None:
    kernels = findings(cli, FTD_KERNELS="reference")["kernels"]
    assert kernels["level"] == "warning" and kernels["cost"] == "many times slower; run scripts/build"


def test_a_capped_instruction_set_is_a_warning(cli) -> None:
    processor = findings(cli, FTD_ISA="scalar")["processor"]
    assert processor["fact"].endswith(", scalar")
    assert processor["level"] == "warning" or "held back" not in processor["cost"]


def test_kernels_that_cannot_be_chosen_are_an_error(cli) -> None:
    result = cli("doctor", "--json", env={"FTD_KERNELS": "triton"})
    kernels = next(each for each in json.loads(result.stdout) if each["name"] == "kernels")
    assert result.returncode == 1
    assert kernels["level"] == "error"
    assert kernels["fact"].startswith("FTD_KERNELS has no implementation of")


def test_a_bad_setting_is_an_error_not_a_crash(cli) -> None:
    result = cli("doctor", env={"FTD_MAX_QUEUE": "0"})
    assert result.returncode == 1
    assert "FTD_MAX_QUEUE must be between 1 and 1000000: 0" in result.stdout


def test_without_a_daemon_it_says_what_that_costs(cli) -> None:
    host = f"127.0.0.1:{free_port()}"
    daemon = findings(cli, FTD_HOST=host)["daemon"]
    assert (daemon["level"], daemon["fact"]) == ("ok", f"none at http://{host}")


@pytest.mark.parametrize(
    ("found", "level", "cost"),
    [
        ({"usable_cores": 4, "logical_cores": 4, "allowed_cores": 4, "quota_cores": None}, "ok", ""),
        (
            {"usable_cores": 4, "logical_cores": 8, "allowed_cores": 8, "quota_cores": None},
            "ok",
            "hyper-threads are left out",
        ),
        (
            {"usable_cores": 2, "logical_cores": 8, "allowed_cores": 8, "quota_cores": 2.5},
            "warning",
            "the cgroup's quota allows 2.5",
        ),
        (
            {"usable_cores": 1, "logical_cores": 8, "allowed_cores": 1, "quota_cores": None},
            "warning",
            "the affinity mask allows 1",
        ),
    ],
)
def test_cores(found: dict[str, int], level: str, cost: str) -> None:
    finding = doctor._cores(found)
    assert (finding.level, finding.cost) == (level, cost)


def test_a_store_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    (finding,) = doctor._store(tmp_path / "models")
    assert (finding.level, finding.fact) == ("error", f"not writable: {tmp_path}")


def test_versions_of_torch_come_from_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"torch": "2.11.0", "triton": "3.6.0"}

    def version(name: str) -> str:
        if name not in installed:
            raise doctor.importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    assert doctor._torch({"device": "a card"}) == ("torch", "ok", "torch 2.11.0, triton 3.6.0", "")
    del installed["triton"]
    assert doctor._torch({"device": "cpu"}).fact == "torch 2.11.0, no triton"
    assert "ftd[gpu]" in doctor._torch({"device": "cpu"}).cost


def test_memory_is_what_a_control_group_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.machine, "available_bytes", lambda: 2 << 20)
    finding = doctor._memory(config.load(environ={}))
    assert finding.fact.startswith("2.1 MB of ") and "control group" in finding.fact
    assert finding.cost.endswith("must fit in 2.1 MB")


def test_the_limit_of_locked_memory() -> None:
    free = doctor._locking({"device": "a card"}, doctor.resource.RLIM_INFINITY)
    assert (free.fact, free.cost) == ("no limit", "")
    few = doctor._locking({"device": "a card"}, 8 << 20)
    assert few.fact == "8.4 MB a process (ulimit -l)" and "raise it" in few.cost
    assert "only to experts" in doctor._locking({"device": "cpu"}, 8 << 20).cost


@pytest.mark.parametrize(
    ("isa", "detected", "level", "cost"),
    [
        ("amx", "amx", "ok", ""),
        ("avx512", "avx512", "ok", "no AMX: long prompts run slower"),
        ("avx2", "amx", "warning", "FTD_ISA holds it back from amx"),
    ],
)
def test_instruction_sets_and_what_they_cost(isa: str, detected: str, level: str, cost: str) -> None:
    finding = doctor._instructions({"isa": isa, "detected_isa": detected, "processor": "X, y"})
    assert (finding.level, finding.fact, finding.cost) == (level, f"X, {isa}", cost)

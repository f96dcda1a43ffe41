"""``ftd ps``, checked against Ollama's layout typed by hand."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from fake_api import FakeApi, model
from ports import free_port

from ftd.cli.ps import memory_line, processor


def loaded(name: str, expires: str, **fields: int) -> dict[str, object]:
    return {
        **model(name),
        "size": 260_000_000,
        "size_vram": 0,
        "context_length": 4096,
        "expires_at": expires,
        **fields,
    }


def soon(**delta: float) -> str:
    return (datetime.now(UTC) + timedelta(**delta)).isoformat()


def test_the_table_has_ollamas_columns(cli, api: FakeApi) -> None:
    api.answers["GET /api/ps"] = {
        "models": [
            loaded("smollm2:latest", soon(minutes=4, seconds=30)),
            loaded("big:latest", "2318-01-01T00:00:00Z", size=10**9, size_vram=520_000_000),
            loaded("going:latest", soon(seconds=-5)),
        ]
    }
    assert cli("ps").stdout == (
        "NAME              ID              SIZE      PROCESSOR          CONTEXT    UNTIL                 \n"
        "smollm2:latest    8eeb52dfb3bb    260 MB    100% CPU           4096       4 minutes from now    \n"
        "big:latest        8eeb52dfb3bb    1 GB      48%/52% CPU/GPU    4096       Forever               \n"
        "going:latest      8eeb52dfb3bb    260 MB    100% CPU           4096       Stopping...           \n"
    )


def test_experts_beyond_the_card_have_a_line_beside_the_table(cli, api: FakeApi) -> None:
    experts = {
        "slots": 2304,
        "reads": 1000,
        "hits": 870,
        "hit_rate": 0.87,
        "fills": 20,
        "transient_fills": 10,
        "on_cpu": 110,
        "copied_bytes_per_token": 12_000_000,
        "cpu_bytes_per_token": 45_000_000,
        "cpu_seconds": 1.5,
        "split": [0, 0, 1],
    }
    row = loaded("big:latest", soon(minutes=1), size=10**9, size_vram=520_000_000) | {"experts": experts}
    api.answers["GET /api/ps"] = {"models": [row]}
    result = cli("ps")
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr == (
        "big:latest: 2304 experts on the card, 87.0% of reads hit, 3.0% copied, 11.0% on the processor; "
        "12 MB copied and 45 MB read by the processor a token; copies of misses 0/1 0/2 1/3\n"
    )


def test_quiet_prints_names_only(cli, api: FakeApi) -> None:
    """CLI-1: scripts want names."""
    api.answers["GET /api/ps"] = {
        "models": [loaded("a:latest", soon(minutes=1)), loaded("b:8b", soon(minutes=1))]
    }
    assert cli("ps", "-q").stdout == "a:latest\nb:8b\n"


def test_json_is_the_list_of_the_api(cli, api: FakeApi) -> None:
    """CLI-1."""
    models = [loaded("a:latest", soon(minutes=1))]
    api.answers["GET /api/ps"] = {"models": models}
    assert json.loads(cli("ps", "--json").stdout) == models


def test_without_a_daemon_nothing_is_loaded_and_none_is_started(cli) -> None:
    port = free_port()
    result = cli("ps", "--json", env={"FTD_HOST": f"127.0.0.1:{port}"})
    assert (result.returncode, result.stdout) == (0, "[]\n")
    assert result.stderr == f"note: no daemon listens: http://127.0.0.1:{port}\n"


@pytest.mark.parametrize(
    ("size", "size_vram", "text"),
    [
        (100, 0, "100% CPU"),
        (100, 100, "100% GPU"),
        (100, 52, "48%/52% CPU/GPU"),
        (0, 0, "Unknown"),
        (1, 2, "Unknown"),
    ],
)
def test_processor(size: int, size_vram: int, text: str) -> None:
    assert processor(size, size_vram) == text


def test_memory_is_said_in_a_line_of_its_own() -> None:
    memory = {
        "place": "NVIDIA H200",
        "reason": "it can be used",
        "weight_bytes": 900_000_000,
        "kv_bytes": 800_000_000,
        "workspace_bytes": 300_000_000,
        "overhead_bytes": 700_000_000,
        "slots": 1200,
        "slot_bytes": 4_000_000_000,
        "experts": 6144,
        "host_expert_bytes": 16_000_000_000,
        "used_bytes": 6_800_000_000,
        "budget_bytes": 8_000_000_000,
        "notes": ["something to know"],
    }
    assert memory_line("m", memory) == (
        "m: on NVIDIA H200 (it can be used): weights 900 MB, KV 800 MB, workspace 300 MB, driver and kernels "
        "700 MB, slots 4 GB for 1200 of 6144 experts, all in host memory 16 GB; in use 6.8 GB; "
        "allowed 8 GB\nm: something to know"
    )
    cpu = memory | {"place": "cpu", "reason": "", "experts": 0, "overhead_bytes": 0, "notes": []}
    assert memory_line("m", cpu | {"used_bytes": 0, "budget_bytes": 0}) == (
        "m: on cpu: weights 900 MB, KV 800 MB, workspace 300 MB"
    )

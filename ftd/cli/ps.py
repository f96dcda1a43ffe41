"""``ftd ps``: the models that are loaded."""

import argparse
from datetime import UTC, datetime, timedelta
from typing import Any

from ftd import units
from ftd.cli import background, output
from ftd.cli.client import DaemonUnreachable

# a model that stays for ever expires in some 290 years
_FOREVER = timedelta(days=20 * 365)


def run(options: argparse.Namespace) -> int:
    """Print the loaded models; without a daemon there are none, so none is started.

    Lines that Ollama's table does not have are notes: scripts cut columns out of the table.
    """
    try:
        models = background.connect(start=False).call("GET", "/api/ps")["models"]
    except DaemonUnreachable as exc:
        output.note(f"note: {exc.message}")
        models = []
    if options.json:
        output.print_json(models)
    elif options.quiet:
        for model in models:
            print(model["name"])
    else:
        now = datetime.now(UTC)
        rows = [
            (
                model["name"],
                model["digest"][:12],
                units.format_bytes(model["size"]),
                processor(model["size"], model.get("size_vram", 0)),
                str(model.get("context_length", "-")),
                _until(model, now),
            )
            for model in models
        ]
        print(output.table(("name", "id", "size", "processor", "context", "until"), rows), flush=True)
        for model in models:
            if "memory" in model:
                output.note(memory_line(model["name"], model["memory"]))
            if "experts" in model:
                output.note(experts_line(model["name"], model["experts"]))
    return 0


def memory_line(name: str, memory: dict[str, Any]) -> str:
    """Say where a model lies, why there, and what it takes."""
    parts = [
        f"{label} {units.format_bytes(memory[key])}"
        for label, key in (
            ("weights", "weight_bytes"),
            ("KV", "kv_bytes"),
            ("workspace", "workspace_bytes"),
            ("driver and kernels", "overhead_bytes"),
        )
        if memory[key]
    ]
    if memory["experts"]:
        parts.append(
            f"slots {units.format_bytes(memory['slot_bytes'])} for {memory['slots']} of {memory['experts']} "
            f"experts, all in host memory {units.format_bytes(memory['host_expert_bytes'])}"
        )
    place = f"{memory['place']} ({memory['reason']})" if memory["reason"] else memory["place"]
    line = f"{name}: on {place}: {', '.join(parts)}"
    if memory["used_bytes"]:
        line += f"; in use {units.format_bytes(memory['used_bytes'])}"
    if memory["budget_bytes"]:
        line += f"; allowed {units.format_bytes(memory['budget_bytes'])}"
    return "".join([line, *(f"\n{name}: {note}" for note in memory["notes"])])


def experts_line(name: str, experts: dict[str, Any]) -> str:
    """Say what became of the experts that a card does not hold."""
    reads = max(1, experts["reads"])
    fetched = experts["fills"] + experts["transient_fills"]
    split = " ".join(f"{copied}/{misses}" for misses, copied in enumerate(experts["split"], 1))
    return (
        f"{name}: {experts['slots']} experts on the card, {experts['hit_rate']:.1%} of reads hit, "
        f"{fetched / reads:.1%} copied, {experts['on_cpu'] / reads:.1%} on the processor; "
        f"{units.format_bytes(experts['copied_bytes_per_token'])} copied and "
        f"{units.format_bytes(experts['cpu_bytes_per_token'])} read by the processor a token; "
        f"copies of misses {split}"
    )


def processor(size: int, size_vram: int) -> str:
    """Say which share of a model's bytes lies where: ``100% CPU``, ``48%/52% CPU/GPU``."""
    if size_vram == 0 and size > 0:
        return "100% CPU"
    if size == 0 or size_vram > size:
        return "Unknown"
    if size_vram == size:
        return "100% GPU"
    cpu = round((size - size_vram) / size * 100)
    return f"{cpu}%/{100 - cpu}% CPU/GPU"


def _until(model: dict[str, Any], now: datetime) -> str:
    expires = datetime.fromisoformat(model["expires_at"])
    if expires < now:
        return "Stopping..."
    if expires - now > _FOREVER:
        return "Forever"
    return units.format_age(expires, now)

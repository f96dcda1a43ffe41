"""``ftd doctor``: what works on this machine, and what each thing that is not at its best costs."""

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psutil

import ftd
from ftd import config, environment, machine, units
from ftd.address import parse_address
from ftd.cli import output
from ftd.cli.client import Client, DaemonUnreachable, RequestFailed
from ftd.errors import FtdError

Level = Literal["ok", "warning", "error"]
_PROBE_TIMEOUT_S = 60
_LOW_DISK_BYTES = 10 * 10**9
_COLOURS: dict[Level, str] = {"ok": "32", "warning": "33", "error": "31"}


class Finding(NamedTuple):
    """One line: what was looked at, how it stands, the fact, and what that costs (empty: nothing)."""

    name: str
    level: Level
    fact: str
    cost: str = ""


def run(options: argparse.Namespace) -> int:
    """Print the findings; exit code 1 if one is an error."""
    findings = list(examine())
    if options.json:
        output.print_json([finding._asdict() for finding in findings])
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            mark = output.styled(f"{finding.level:<8}", _COLOURS[finding.level], sys.stdout)
            cost = f": {finding.cost}" if finding.cost else ""
            print(f"{mark} {finding.name:<{width}}  {finding.fact}{cost}")
    return 1 if any(finding.level == "error" for finding in findings) else 0


def examine() -> Iterator[Finding]:
    """Look at everything, one finding at a time."""
    yield Finding("version", "ok", f"ftd {ftd.__version__}, Python {platform.python_version()}")
    try:
        loaded = config.load()
    except FtdError as exc:
        yield Finding("settings", "error", exc.message, "nothing starts until this is corrected")
        return
    changed = ", ".join(sorted(set(loaded.sources.values()))) or "all defaults"
    yield Finding("settings", "ok", f"{environment.state_dir() / 'config.toml'}, from {changed}")
    yield from _compute()
    yield _memory(loaded)
    yield from _store(loaded.registry.models_dir)
    yield _daemon(loaded)


def _compute() -> Iterator[Finding]:
    """Ask a process of its own which kernels run here."""
    command = environment.module_command("ftd.engine.probe")
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
        found = json.loads(result.stdout)
    except (ValueError, subprocess.TimeoutExpired) as exc:
        last = result.stderr.strip().splitlines()[-1:] if isinstance(exc, ValueError) else []
        yield Finding("kernels", "error", "; ".join(last) or f"the probe failed: {exc}", "no model can run")
        return
    if "error" in found:
        yield Finding("kernels", "error", found["error"], found["hint"] or "no model can run")
        return
    yield _cores(found)
    yield _instructions(found)
    yield _device(found)
    yield _torch(found)
    yield _locking(found, resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    slow = sorted(op for op, name in found["kernels"].items() if name == "reference")
    if slow:
        fact = f"{len(slow)} of {len(found['kernels'])} ops run their reference: {' '.join(slow)}"
        yield Finding("kernels", "warning", fact, "many times slower; run scripts/build")
    else:
        yield Finding("kernels", "ok", f"all {len(found['kernels'])} ops run compiled")


def _device(found: dict[str, Any]) -> Finding:
    if found["device"] == "cpu":
        return Finding("device", "ok", f"cpu: {found['device_reason']}", "memory speed bounds tokens/s")
    return Finding(
        "device", "ok", f"{found['device']}, {units.format_bytes(found['device_free_bytes'])} free"
    )


def _torch(found: dict[str, Any]) -> Finding:
    """Say which torch and Triton a card would be used with; their files say it, nothing is imported."""
    versions = []
    for name in ("torch", "triton"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"no {name}")
    fact = ", ".join(versions)
    if "no " in fact:
        return Finding("torch", "ok", fact, "only a card needs it: pip install 'ftd[gpu]'")
    return Finding("torch", "ok", fact, "" if found["device"] != "cpu" else "not used without a card")


def _locking(found: dict[str, Any], limit_bytes: int) -> Finding:
    """Say how much memory a process may lock; experts beyond a card's memory are locked by its driver."""
    if limit_bytes == resource.RLIM_INFINITY:
        return Finding("locked memory", "ok", "no limit")
    fact = f"{units.format_bytes(limit_bytes)} a process (ulimit -l)"
    if found["device"] == "cpu":
        return Finding("locked memory", "ok", fact, "matters only to experts beside a card")
    cost = "a driver that counts its pages refuses experts beyond that; raise it where a load says so"
    return Finding("locked memory", "ok", fact, cost)


def _cores(found: dict[str, int]) -> Finding:
    usable, logical, allowed = found["usable_cores"], found["logical_cores"], found["allowed_cores"]
    fact = f"{usable} of {logical} used"
    if found["quota_cores"] and found["quota_cores"] < allowed:
        return Finding("cores", "warning", fact, f"the cgroup's quota allows {found['quota_cores']:g}")
    if allowed < logical:
        return Finding("cores", "warning", fact, f"the affinity mask allows {allowed}")
    return Finding("cores", "ok", fact, "hyper-threads are left out" if usable < logical else "")


def _instructions(found: dict[str, str]) -> Finding:
    isa, detected = found["isa"], found["detected_isa"]
    name = found["processor"].split(",")[0]
    if isa != detected:
        return Finding("processor", "warning", f"{name}, {isa}", f"FTD_ISA holds it back from {detected}")
    costs = {
        "scalar": "no AVX2: many times slower than a processor of the last ten years",
        "avx2": "no AVX-512 VNNI: long prompts run slower",
        "avx512": "no AMX: long prompts run slower",
    }
    return Finding("processor", "warning" if isa == "scalar" else "ok", f"{name}, {isa}", costs.get(isa, ""))


def _memory(loaded: config.Config) -> Finding:
    memory, free = psutil.virtual_memory(), machine.available_bytes()
    fact = f"{units.format_bytes(free)} of {units.format_bytes(memory.total)} free"
    if free < 0.9 * memory.available:
        fact += ", bounded by a control group or ulimit -v"
    budget = loaded.engine.host_memory_bytes
    if budget and budget < free:
        free = budget
        fact += f", FTD_HOST_MEMORY {units.format_bytes(budget)}"
    return Finding(
        "memory",
        "ok",
        fact,
        f"weights, context and workspace of a model must fit in {units.format_bytes(free)}",
    )


def _store(folder: Path) -> Iterator[Finding]:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        yield Finding("store", "error", f"not writable: {existing}", "nothing can be pulled or created")
        return
    blobs = [path.stat().st_size for path in folder.glob("blobs/*") if path.is_file()]
    yield Finding("store", "ok", f"{folder}, {len(blobs)} blobs, {units.format_bytes(sum(blobs))}")
    free = shutil.disk_usage(existing).free
    level: Level = "warning" if free < _LOW_DISK_BYTES else "ok"
    cost = "a pull that needs more is refused before it starts" if level == "warning" else ""
    yield Finding("disk", level, f"{units.format_bytes(free)} free", cost)
    if _has_direct_io(existing):
        yield Finding("direct I/O", "ok", "works on the store's file system")
    else:
        cost = "loads go through the page cache: slower, and they push other files out of it"
        yield Finding("direct I/O", "warning", "not on the store's file system", cost)


def _has_direct_io(folder: Path) -> bool:
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        try:
            os.close(os.open(file.name, os.O_RDONLY | os.O_DIRECT))
        except OSError:
            return False
    return True


def _daemon(loaded: config.Config) -> Finding:
    client = Client(parse_address(loaded.server.host))
    try:
        version = client.call("GET", "/api/version")["version"]
    except (DaemonUnreachable, RequestFailed, KeyError):
        return Finding(
            "daemon",
            "ok",
            f"none at {client.address.url}",
            "the next command starts one: about half a second",
        )
    return Finding("daemon", "ok", f"answers at {client.address.url}, Ollama API {version}")

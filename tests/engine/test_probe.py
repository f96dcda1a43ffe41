"""The probe as a process: what it says agrees with the kernels' own modules."""

import json
import os
import subprocess
import sys

from ftd.kernels import cpu


def probe(**env: str) -> tuple[int, dict[str, object]]:
    command = [sys.executable, "-W", "error", "-m", "ftd.engine.probe"]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | env, check=False)
    assert result.stderr == ""
    return result.returncode, json.loads(result.stdout)


def test_it_names_cores_and_instruction_sets() -> None:
    code, found = probe(FTD_KERNELS="reference")
    assert code == 0
    assert (found["isa"], found["detected_isa"]) == (cpu.isa(), cpu.detected_isa())
    assert found["usable_cores"] == len(cpu.usable_cores())
    assert set(found["kernels"].values()) == {"reference"}  # type: ignore[attr-defined]


def test_a_bad_choice_is_an_answer_not_a_crash() -> None:
    code, found = probe(FTD_ISA="sse9")
    assert code == 1
    assert found == {"error": "FTD_ISA is unknown: sse9", "hint": "use one of scalar avx2 avx512 amx"}

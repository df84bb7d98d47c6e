"""What the process makes of the machine."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from proxima import machine

NAME, VERSION = platform.libc_ver()
LIBC = NAME, tuple(int(part) for part in VERSION.split(".") if part.isdigit())

FAULTS = """
import resource
import torch
from proxima.machine import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.empty(2**24).fill_(1.0)  # 64 MiB, 16,384 pages: more than is ever kept by default
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
first = faults()
keep_freed_memory()
for _ in range(6):  # until it has found a place
    faults()
print(first, faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(LIBC[0] != "glibc" or LIBC[1] < (2, 35), reason=f"{LIBC} cannot be told to keep 64 MiB")
def test_memory_that_is_freed_is_used_again() -> None:
    process = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True)
    before, after = map(int, process.stdout.split())
    assert after < 100 < before


PRINTS = """
import ctypes, os
from proxima.machine import stdout_to_stderr
with stdout_to_stderr():
    print("python")
    os.write(1, b"system ")
    ctypes.CDLL(None).puts(b"native")
print("result")
"""


def test_native_code_does_not_print_between_results() -> None:
    process = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True, text=True)
    assert process.stdout == "result\n", process.stderr
    assert {"python", "system", "native"} <= set(process.stderr.split())


@pytest.mark.parametrize(("text", "cores"), [("150000 100000", 2), ("max 100000", 8), ("50000 100000", 1), ("", 8)])
def test_a_container_has_the_cores_of_its_limit(
    text: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = tmp_path / "cpu.max"
    if text:
        quota.write_text(f"{text}\n")
    monkeypatch.setattr(machine, "_QUOTA", quota)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: range(8))
    assert machine.available_cores() == cores

"""What the process makes of the machine."""

import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource, sys
import torch
from proxima.machine import keep_freed_memory
if not hasattr(ctypes.CDLL(None), "mallopt"):
    sys.exit("no mallopt")
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.empty(2**24).fill_(1.0)  # 64 MiB: 16,384 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
first = faults()
keep_freed_memory()
for _ in range(6):  # until it has found a place
    faults()
print(first, faults())
"""


def test_memory_that_is_freed_is_used_again() -> None:
    process = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True)
    if "no mallopt" in process.stderr:
        pytest.skip("this C library has no mallopt")
    before, after = map(int, process.stdout.split())
    assert after < 100 < before

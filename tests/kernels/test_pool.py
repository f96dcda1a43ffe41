"""The pool: every part of every op runs once, in order, whatever the threads; and it ends when told."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from weights import random_matrix

from ftd.errors import InvalidOption, KernelUnavailable
from ftd.kernels import cpu
from ftd.kernels._bandwidth_cy import read_all
from ftd.kernels._matmul_cy import matmul
from ftd.kernels._pool import Pool, isa_in_force, set_isa


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 32])
def test_each_part_runs_once(threads: int, rng: np.random.Generator) -> None:
    data = rng.integers(0, 2**63, 10007, np.uint64)
    expected = int(np.bitwise_xor.reduce(data))
    with Pool(threads) as pool:
        assert pool.num_threads == threads
        for _ in range(50):
            assert read_all(data, pool)[0] == expected


def test_zero_threads_means_one_for_each_usable_core() -> None:
    with Pool() as pool:
        assert pool.num_threads == min(32, len(cpu.usable_cores()))


@pytest.mark.parametrize("threads", [-1, 33, 10**6])
def test_an_absurd_number_of_threads_is_refused(threads: int) -> None:
    with pytest.raises(InvalidOption, match="1 to 32"):
        Pool(threads)


def test_a_closed_pool_runs_nothing_and_closes_twice() -> None:
    pool = Pool(3)
    pool.close()
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        read_all(np.ones(8, np.uint64), pool)


def test_a_pool_that_is_dropped_ends_its_threads() -> None:
    before = threading_count()
    for _ in range(20):
        Pool(4)
    assert threading_count() == before


def test_no_more_threads_are_started_than_can_run_at_once() -> None:
    before = threading_count()
    with Pool(32) as pool:
        assert pool.num_threads == 32
        assert threading_count() - before <= cpu.most_threads() - 1


def threading_count() -> int:
    """Return the threads of this process as the system counts them."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))


def test_callers_in_several_threads_wait_for_each_other(rng: np.random.Generator) -> None:
    weight = random_matrix("q4_0", 64, 256, rng)
    x = rng.standard_normal((3, 256)).astype(np.float32)
    expected = matmul(x, weight)
    wrong = []

    def call() -> None:
        for _ in range(50):
            if not np.array_equal(matmul(x, weight, pool=pool), expected):
                wrong.append(1)

    with Pool(3) as pool:
        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert not wrong


def test_python_runs_while_a_program_runs() -> None:
    data = np.ones(2**23, np.uint64)
    counted = 0
    running = threading.Event()

    def read() -> None:
        with Pool(1) as pool:
            running.set()
            for _ in range(5):
                read_all(data, pool)

    reader = threading.Thread(target=read)
    reader.start()
    running.wait()
    while reader.is_alive():
        counted += 1
    assert counted > 1000


def test_the_level_in_force_can_be_lowered_and_restored() -> None:
    before = set_isa("scalar")
    assert isa_in_force() == "scalar"
    assert set_isa(before) == "scalar"
    with pytest.raises(KernelUnavailable):
        set_isa("mmx")


def test_ftd_isa_caps_the_level_of_a_process() -> None:
    code = "from ftd.kernels._pool import isa_in_force; print(isa_in_force())"
    output = subprocess.run(
        [sys.executable, "-c", code], env={"FTD_ISA": "scalar"}, capture_output=True, text=True, check=True
    )
    assert output.stdout == "scalar\n"

# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The worker threads of the CPU kernels: the only place of ftd.kernels that makes threads.

A Pool owns its threads until close(). The calling thread is thread 0 and is not pinned (threads that it starts later
would inherit the mask); the workers are pinned one to a core when there are enough cores for all.
"""

from ftd.errors import InvalidOption, KernelUnavailable
from ftd.kernels import cpu

cdef int MAX_THREADS = 32

cdef int32_t _isa = cpu.ISA_LEVELS.index(cpu.isa())


cdef int32_t current_isa() noexcept nogil:
    return _isa


def set_isa(level: str) -> str:
    """Put ``level`` of cpu.ISA_LEVELS in force for ops made from now on and return the one before; for tests."""
    global _isa
    if level not in cpu.ISA_LEVELS or cpu.ISA_LEVELS.index(level) > cpu.ISA_LEVELS.index(cpu.detected_isa()):
        raise KernelUnavailable(f"this machine has {cpu.detected_isa()}, not: {level}")
    before = cpu.ISA_LEVELS[_isa]
    _isa = cpu.ISA_LEVELS.index(level)
    return before


def isa_in_force() -> str:
    """Return the level that ops made now will use."""
    return cpu.ISA_LEVELS[_isa]


cdef class Pool:
    """Worker threads that run programs of ops; one program at a time, later callers wait.

    num_threads   threads including the caller, 1 to 32; 0 means one for each usable core

    Work is divided by num_threads, but no more threads are started than can run at once: the others would take
    turns on the same cores and every op would wait for them.
    """

    def __cinit__(self, num_threads: int = 0):
        cores = cpu.usable_cores()
        wanted = num_threads or min(len(cores), MAX_THREADS)
        if not 1 <= wanted <= MAX_THREADS:
            raise InvalidOption(f"number of threads must lie in 1 to {MAX_THREADS}, got {num_threads}")
        cdef vector[int] allowed = cores
        self.num_threads = wanted
        self.threads = new ThreadPool(self.num_threads, min(wanted, cpu.most_threads()), allowed)

    def __dealloc__(self):
        if self.threads != NULL:
            with nogil:
                del self.threads
            self.threads = NULL

    def close(self) -> None:
        """End the worker threads; a program in progress finishes first. A second call does nothing."""
        cdef ThreadPool* threads = self.threads
        self.threads = NULL
        if threads != NULL:
            with nogil:
                del threads

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    cdef int run(self, const Op* ops, int32_t num_ops, const Step* step) except -1 nogil:
        if self.threads == NULL:
            with gil:
                raise ValueError("the pool is closed")
        self.threads.run(ops, num_ops, step)
        return 0


cdef int run_ops(Pool pool, const Op* ops, int32_t num_ops, const Step* step) except -1 nogil:
    cdef int32_t i
    if pool is not None:
        return pool.run(ops, num_ops, step)
    for i in range(num_ops):
        ops[i].run(ops[i].args, step, 0, 1)
    return 0

"""Types of the compiled module: see _pool.pyx."""

from types import TracebackType

class Pool:
    """Worker threads that run programs of ops; one program at a time, later callers wait."""

    @property
    def num_threads(self) -> int:
        """Threads including the caller."""

    def __init__(self, num_threads: int = 0) -> None: ...
    def close(self) -> None:
        """End the worker threads; a program in progress finishes first."""

    def __enter__(self) -> Pool: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

def set_isa(level: str) -> str:
    """Put a level in force for ops made from now on and return the one before; for tests."""

def isa_in_force() -> str:
    """Return the level that ops made now will use."""

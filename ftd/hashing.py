"""sha256 of a stream beside the writing of it: hashing takes about as long as writing to a fast disk."""

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

PARALLEL_BYTES = 1 << 20  # from here on a piece is worth a thread switch


class StreamHash:
    """The sha256 of a stream of bytes. One thread calls it; a second one hashes large pieces meanwhile."""

    def __init__(self, hash: "hashlib._Hash | None" = None) -> None:
        """Begin, or go on after what ``hash`` has seen."""
        self._hash = hashlib.sha256() if hash is None else hash
        self._thread: ThreadPoolExecutor | None = None

    def update(self, data: memoryview, write: Callable[[memoryview], object]) -> None:
        """Call ``write(data)`` and add ``data`` to the hash; both are done on return."""
        if len(data) < PARALLEL_BYTES:
            self._hash.update(data)
            write(data)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "hash")
        hashed = self._thread.submit(self._hash.update, data)
        try:
            write(data)
        finally:
            hashed.result()

    def hexdigest(self) -> str:
        """Return the hash of everything so far."""
        return self._hash.hexdigest()

    def close(self) -> None:
        """End the thread; harmless twice."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

"""What is committed through a recorder: noted, held against clean-up until its end, and nothing else."""

import contextlib
from pathlib import Path

from ftd.daemon.recorder import Recorder
from ftd.registry.store import Store


def test_what_is_committed_is_noted_and_held_until_the_end(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with contextlib.ExitStack() as hold:
        recorder = Recorder(store, hold)
        with recorder.new() as writer:
            writer.write(b"kept")
            digest, size = writer.commit()
        with recorder.new() as writer:
            writer.write(b"given up")
        assert (recorder.digests, size) == ([digest], 4)
        store.prune([digest])
        assert store.blobs.path(digest).read_bytes() == b"kept"
    store.prune([digest])
    assert not store.blobs.path(digest).exists()

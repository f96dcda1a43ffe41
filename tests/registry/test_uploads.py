"""Upload sessions, against a slow model: a dict from ids to bytes, which a restart does not touch."""

import errno
import tempfile
from pathlib import Path

import pytest
from examples import examples
from faulty_registry import digest_of, files_in
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ftd.errors import Busy, DigestMismatch, InvalidDigest, UploadNotFound, UploadOutOfOrder
from ftd.registry.blobs import BlobStore
from ftd.registry.uploads import Uploads

HELLO = digest_of(b"hello")


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    return Uploads(BlobStore(tmp_path / "blobs"))


def test_a_session_goes_from_open_to_blob(uploads: Uploads, tmp_path: Path) -> None:
    upload_id = uploads.start()
    with uploads.claim(upload_id) as session:
        session.check_start(0)
        session.append(b"hel")
    assert uploads.offset(upload_id) == 3
    with uploads.claim(upload_id) as session:
        session.check_start(3)
        session.append(bytearray(b"lo"))
        session.commit(HELLO)
    assert BlobStore(tmp_path / "blobs").read(HELLO) == b"hello"
    with pytest.raises(UploadNotFound):
        uploads.offset(upload_id)


def test_a_part_out_of_order_changes_nothing_and_tells_the_true_offset(uploads: Uploads) -> None:
    upload_id = uploads.start()
    with uploads.claim(upload_id) as session:
        session.append(b"hel")
    for start in (0, 2, 4):
        with pytest.raises(UploadOutOfOrder) as caught, uploads.claim(upload_id) as session:
            session.check_start(start)
        assert caught.value.offset == 3
    assert uploads.offset(upload_id) == 3


def test_a_full_disk_ends_the_session_and_gets_its_room_back(
    uploads: Uploads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    upload_id = uploads.start()
    with pytest.raises(OSError, match="no space left"), uploads.claim(upload_id) as session:
        session.append(b"hel")
        monkeypatch.setattr("os.pwrite", full)
        session.append(b"lo")
    assert files_in(tmp_path / "blobs") == []
    with pytest.raises(UploadNotFound):
        uploads.offset(upload_id)


def test_a_wrong_digest_drops_the_session(uploads: Uploads, tmp_path: Path) -> None:
    upload_id = uploads.start()
    with pytest.raises(DigestMismatch), uploads.claim(upload_id) as session:
        session.append(b"jello")
        session.commit(HELLO)
    assert files_in(tmp_path / "blobs") == []


def test_a_malformed_digest_leaves_the_session(uploads: Uploads) -> None:
    upload_id = uploads.start()
    with pytest.raises(InvalidDigest), uploads.claim(upload_id) as session:
        session.append(b"hello")
        session.commit("sha256:../../x")
    assert uploads.offset(upload_id) == 5


def test_one_caller_at_a_time_works_on_a_session(uploads: Uploads) -> None:
    upload_id = uploads.start()
    with uploads.claim(upload_id):
        with pytest.raises(Busy), uploads.claim(upload_id):
            raise AssertionError("claimed twice")
        with uploads.claim(uploads.start()) as other:
            other.append(b"x")
    with uploads.claim(upload_id) as session:
        assert session.offset == 0


@pytest.mark.parametrize(
    "upload_id", ["", "x", "../x", "0" * 31, "0" * 33, "A" * 32, "0" * 32, "0" * 31 + "\n"]
)
def test_an_unknown_or_malformed_id_is_not_found(uploads: Uploads, upload_id: str) -> None:
    for call in (uploads.offset, uploads.cancel, lambda found: uploads.claim(found).__enter__()):
        with pytest.raises(UploadNotFound):
            call(upload_id)


class UploadMachine(RuleBasedStateMachine):
    """Any order of calls, with restarts in between, keeps files and model alike."""

    ids = Bundle("ids")
    data = st.binary(max_size=9)

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.blobs = BlobStore(Path(self.folder.name))
        self.uploads = Uploads(self.blobs)
        self.model: dict[str, bytes] = {}
        self.committed: set[str] = set()

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(target=ids)
    def start(self) -> str:
        upload_id = self.uploads.start()
        self.model[upload_id] = b""
        return upload_id

    @rule(upload_id=ids, data=data, shift=st.sampled_from([0, 0, 0, -1, 1, None]))
    def append(self, upload_id: str, data: bytes, shift: int | None) -> None:
        held = self.model[upload_id]
        start = None if shift is None else len(held) + shift
        try:
            with self.uploads.claim(upload_id) as session:
                session.check_start(start)
                session.append(data)
                self.model[upload_id] = held + data
        except UploadOutOfOrder as exc:
            assert shift in (-1, 1)
            assert exc.offset == len(held)
        else:
            assert shift in (0, None)

    @rule(upload_id=ids, data=data)
    def append_and_break(self, upload_id: str, data: bytes) -> None:
        with pytest.raises(ConnectionError), self.uploads.claim(upload_id) as session:
            session.append(data)
            raise ConnectionError
        self.model[upload_id] += data

    @rule(upload_id=consumes(ids))
    def commit(self, upload_id: str) -> None:
        digest = digest_of(self.model.pop(upload_id))
        with self.uploads.claim(upload_id) as session:
            session.commit(digest)
        self.committed.add(digest)

    @rule(upload_id=consumes(ids))
    def commit_under_a_wrong_digest(self, upload_id: str) -> None:
        wrong = digest_of(self.model.pop(upload_id) + b"!")
        with pytest.raises(DigestMismatch), self.uploads.claim(upload_id) as session:
            session.commit(wrong)

    @rule(upload_id=consumes(ids))
    def cancel(self, upload_id: str) -> None:
        self.uploads.cancel(upload_id)
        del self.model[upload_id]

    @rule()
    def restart(self) -> None:
        self.uploads = Uploads(self.blobs)

    @invariant()
    def offsets_and_blobs_are_those_of_the_model(self) -> None:
        for upload_id, data in self.model.items():
            assert self.uploads.offset(upload_id) == len(data)
        assert set(self.blobs.digests()) == self.committed
        assert all(map(self.blobs.verify, self.committed))
        assert len(files_in(self.blobs.folder)) == len(self.model) + len(self.committed)


TestUploadMachine = UploadMachine.TestCase
TestUploadMachine.settings = settings(max_examples=examples(25), stateful_step_count=20)

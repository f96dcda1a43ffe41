"""ftd.ftw.format against a config typed by hand, and what validate must refuse, one changed value at once."""

import json
from typing import Any

import msgspec
import pytest
from ftw_draft import draft

from ftd.errors import InvalidFtw
from ftd.ftw import format as ftw

# One q4_0 tensor [2, 64]: codes 64 bytes at 0, scales f16 8 bytes at 64; one f32 vector at 4096; two chunks.
GOLDEN = (
    b'{"format":"ftw","version":1,"architecture":"llama","hyperparameters":{"hidden_size":64,"vocab_size":2},'
    b'"quantization":"Q4_0","parameter_count":192,'
    b'"tokens":{"bos_id":0,"eos_ids":[1],"pad_id":null,"add_bos":false,"add_eos":false},'
    b'"tensors":[{"name":"model.embed_tokens.weight","format":"q4_0","shape":[2,64],"blob":0,'
    b'"planes":[{"name":"codes","offset":0},{"name":"scales","offset":64}]},'
    b'{"name":"model.norm.weight","format":"f32","shape":[1,64],"blob":0,'
    b'"planes":[{"name":"codes","offset":4096}]}],'
    b'"blobs":[{"digest":"sha256:' + b"0" * 64 + b'","size":8192,'
    b'"media_type":"application/vnd.ftd.weights.dense.v1","chunk_bytes":4096,'
    b'"chunks":["' + b"a" * 64 + b'","' + b"b" * 64 + b'"]}],'
    b'"experts":null,"metadata":{"general.architecture":"llama"},"provenance":{}}\n'
)


def edited(path: str, value: Any) -> bytes:
    """Return the golden config with the value at a dotted path replaced."""
    document = json.loads(GOLDEN)
    *parents, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    place = document
    for key in parents:
        place = place[key]
    place[last] = value
    return json.dumps(document).encode()


def test_golden_bytes_parse_and_encode_to_themselves() -> None:
    config = ftw.parse_config(GOLDEN)
    assert config.tensors[0].shape == (2, 64)
    assert config.tensors[1].planes == [ftw.PlaneEntry(name="codes", offset=4096)]
    assert config.tokens.eos_ids == [1]
    assert config.blobs[0].chunks == ["a" * 64, "b" * 64]
    assert ftw.encode_config(config) == GOLDEN


def test_unknown_fields_of_later_additions_are_ignored() -> None:
    assert ftw.encode_config(ftw.parse_config(edited("later", {"x": 1}))) == GOLDEN


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", "gguf", "not FTW version 1"),
        ("version", 2, "not FTW version 1"),
        ("version", "1", "config is not FTW"),
        ("parameter_count", -1, "parameter_count"),
        ("hyperparameters/vocab_size", 0, "vocab_size"),
        ("hyperparameters/vocab_size", "2", "vocab_size"),
        ("tokens/bos_id", 2, "token id"),
        ("tokens/eos_ids", [-1], "token id"),
        ("tensors/0/name", "model.norm.weight", "same name"),
        ("tensors/0/name", "../x", "name is not allowed"),
        ("tensors/0/name", "", "name is not allowed"),
        ("tensors/0/format", "q3_k", "unknown format"),
        ("tensors/0/format", "f32", "lacks the planes"),
        ("tensors/0/shape", [0, 64], "in blocks of 32"),
        ("tensors/0/shape", [2, 48], "in blocks of 32"),
        ("tensors/0/shape", [-2, 64], "in blocks of 32"),
        ("tensors/0/shape", [2**63, 64], "ends behind its blob"),
        ("tensors/0/shape", [2, 2**63], "ends behind its blob"),
        ("tensors/0/shape", [2**200, 64], "ends behind its blob"),
        ("tensors/0/shape", [2], "config is not FTW"),
        ("tensors/0/shape", [2, 64, 1], "config is not FTW"),
        ("tensors/0/shape", [2.5, 64], "config is not FTW"),
        ("tensors/0/blob", 1, "lies in no dense blob"),
        ("tensors/0/blob", -1, "lies in no dense blob"),
        ("tensors/0/planes/0/offset", 64, "not at a multiple of 4096"),
        ("tensors/0/planes/0/offset", -4096, "not at a multiple of 4096"),
        ("tensors/0/planes/0/offset", 4096, "planes overlap"),
        ("tensors/0/planes/1/offset", 32, "not at a multiple of 64"),
        ("tensors/0/planes/1/offset", 0, "planes overlap"),
        ("tensors/0/planes/1/offset", 8192, "ends behind its blob"),
        ("tensors/0/planes/1/offset", 2**62, "ends behind its blob"),
        ("tensors/0/planes/1/name", "mins", "lacks the planes"),
        ("tensors/0/planes", [], "lacks the planes"),
        ("blobs/0/digest", "sha256:" + "0" * 63, "invalid digest"),
        ("blobs/0/digest", "sha256:" + "../" * 21 + "0", "invalid digest"),
        ("blobs/0/size", 8191, "multiples of 4096"),
        ("blobs/0/size", 4096, "has 1 chunks, not 2"),
        ("blobs/0/size", 2**62, "blob size"),
        ("blobs/0/size", 0, "blob size"),
        ("blobs/0/chunk_bytes", 0, "chunk_bytes"),
        ("blobs/0/chunk_bytes", 2**31, "chunk_bytes"),
        ("blobs/0/chunks", ["a" * 64], "2 chunks, not 1"),
        ("blobs/0/chunks", ["a" * 64, "B" * 64], "chunk hash"),
        ("blobs", [], "lies in no dense blob"),
    ],
)
def test_one_wrong_value_is_refused(path: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidFtw, match=message):
        ftw.parse_config(edited(path, value))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b"\xff\xfe", GOLDEN[:-2], b"[" * 100_000, b'{"a":' * 5000]
)
def test_what_is_not_a_config_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidFtw):
        ftw.parse_config(data)


def test_blob_sizes_on_disk_must_be_those_of_the_config() -> None:
    config = ftw.parse_config(GOLDEN)
    digest = config.blobs[0].digest
    ftw.validate(config, {digest: 8192})
    with pytest.raises(InvalidFtw, match="has 8191 bytes instead of 8192"):
        ftw.validate(config, {digest: 8191})
    with pytest.raises(InvalidFtw, match="has None bytes"):
        ftw.validate(config, {})


def experts_config(**changes: Any) -> ftw.FtwConfig:
    """Return a config with 2 layers of 3 experts in records of 8192 bytes, 4 records a blob."""
    layout = [
        ftw.TensorEntry(
            name="gate_up",
            format="q4_0",
            shape=(64, 64),
            planes=[ftw.PlaneEntry(name="codes", offset=0), ftw.PlaneEntry(name="scales", offset=2048)],
        ),
        ftw.TensorEntry(
            name="down", format="bf16", shape=(32, 32), planes=[ftw.PlaneEntry(name="codes", offset=4096)]
        ),
    ]
    experts = ftw.Experts(
        num_experts=3,
        record_bytes=8192,
        records_per_blob=4,
        blobs=[0, 1],
        layers=[ftw.ExpertLayer(layer=0, layout=0), ftw.ExpertLayer(layer=2, layout=0)],
        layouts=[layout],
    )
    blobs = [
        ftw.BlobEntry(
            digest=f"sha256:{digit * 64}",
            size=records * 8192,
            media_type=ftw.EXPERTS_MEDIA_TYPE,
            chunk_bytes=1 << 20,
            chunks=["0" * 64],
        )
        for digit, records in (("1", 4), ("2", 2))
    ]
    return draft(blobs=blobs, experts=msgspec.structs.replace(experts, **changes))


def test_expert_records_that_fill_their_blobs_are_accepted() -> None:
    config = experts_config()
    assert ftw.parse_config(ftw.encode_config(config)) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts": 4}, "instead of 4 records"),
        ({"num_experts": 0}, "num_experts"),
        ({"num_experts": 1 << 40}, "num_experts"),
        ({"record_bytes": 4096}, "ends behind its blob"),
        ({"record_bytes": 8200}, "record_bytes is not a multiple"),
        ({"record_bytes": 12288}, "instead of 4 records"),
        ({"records_per_blob": 3}, "instead of 3 records"),
        ({"records_per_blob": 0}, "records_per_blob"),
        ({"blobs": [0]}, "do not fill"),
        ({"blobs": [0, 0]}, "do not fill"),
        ({"blobs": [1, 0]}, "instead of 4 records"),
        ({"blobs": [0, 2]}, "index of an expert blob"),
        ({"layers": []}, "number of expert layers"),
        ({"layers": [ftw.ExpertLayer(layer=1, layout=0)] * 2}, "belong to one layer"),
        ({"layers": [ftw.ExpertLayer(layer=1, layout=1)]}, "layout of an expert row"),
        ({"layouts": []}, "number of record layouts"),
    ],
)
def test_expert_records_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidFtw, match=message):
        ftw.validate(experts_config(**change))


def test_a_dense_tensor_may_not_lie_in_an_expert_blob() -> None:
    entry = ftw.TensorEntry(
        name="x", format="f32", shape=(1, 4), planes=[ftw.PlaneEntry(name="codes", offset=0)]
    )
    with pytest.raises(InvalidFtw, match="lies in no dense blob"):
        ftw.validate(msgspec.structs.replace(experts_config(), tensors=[entry]))

"""Embedding bodies: accepted inputs, encodings, and vectors as numbers or base64."""

import base64
import struct

import numpy as np
import pytest

from ftd.api import embedding
from ftd.api.jsontext import Fields
from ftd.errors import InvalidRequest


@pytest.mark.parametrize(
    ("value", "inputs"),
    [(None, []), ("", []), ([], []), ("a", ["a"]), ([""], [""]), (["a", "b"], ["a", "b"])],
)
def test_embed_inputs(value, inputs):
    assert embedding.parse_embed(Fields({"model": "m", "input": value})).inputs == inputs


@pytest.mark.parametrize("value", [3, {}, [1], ["a", None], [[1, 2]]])
def test_other_inputs_are_refused(value):
    with pytest.raises(InvalidRequest, match="invalid input type"):
        embedding.parse_embed(Fields({"model": "m", "input": value}))
    with pytest.raises(InvalidRequest, match="invalid input type") as caught:
        embedding.parse_openai(Fields({"model": "m", "input": value}))
    assert ("check_embedding_ctx_length=False" in caught.value.hint) is (value in ([1], [[1, 2]]))
    if value == ["a", None]:
        assert caught.value.message.endswith("null at input[1]")


def test_openai_embeds_the_empty_string_and_refuses_nothing():
    assert embedding.parse_openai(Fields({"model": "m", "input": ""})).inputs == [""]
    for value in (None, []):
        with pytest.raises(InvalidRequest, match=r"^invalid input$"):
            embedding.parse_openai(Fields({"model": "m", "input": value}))


def test_encoding_format():
    assert embedding.wants_base64(Fields({"encoding_format": "BASE64"}))
    assert not embedding.wants_base64(Fields({}))
    with pytest.raises(InvalidRequest, match="Invalid value for 'encoding_format' = int8"):
        embedding.wants_base64(Fields({"encoding_format": "int8"}))


def test_vectors_cross_exactly_in_both_encodings():
    vectors = np.array([[0.1, -2.5, 3e-8]], np.float32)
    request = embedding.parse_openai(Fields({"model": "m", "input": "x"}))
    result = embedding.EmbedResult(vectors=vectors, prompt_tokens=2)
    plain = embedding.openai_body(request, result, False)
    coded = embedding.openai_body(request, result, True)
    assert np.array(plain["data"][0]["embedding"], np.float32).tolist() == vectors[0].tolist()
    assert str(plain["data"][0]["embedding"][0]) == "0.1"
    raw = base64.b64decode(coded["data"][0]["embedding"])
    assert list(struct.unpack("<3f", raw)) == vectors[0].tolist()
    assert coded["usage"] == {"prompt_tokens": 2, "total_tokens": 2}


def test_native_bodies():
    request = embedding.parse_embed(Fields({"model": "m", "input": ["a"]}))
    result = embedding.EmbedResult(vectors=np.ones((1, 2), np.float32), prompt_tokens=1, truncated_tokens=5)
    assert embedding.embed_body(request, result) == {
        "model": "m",
        "embeddings": [[1.0, 1.0]],
        "prompt_eval_count": 1,
        "truncated_tokens": 5,
    }
    assert embedding.embeddings_body(result) == {"embedding": [1.0, 1.0]}
    empty = embedding.EmbedResult(vectors=np.zeros((0, 0), np.float32))
    assert embedding.embed_body(request, empty) == {"model": "m", "embeddings": []}
    assert embedding.embeddings_body(empty) == {"embedding": []}

"""Constrained answers of SmolLM2 through the whole daemon: every one parses and has the shape asked for."""

import asyncio
import json
import re

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

PERSON = {
    "title": "Person",
    "type": "object",
    "$defs": {
        "Pet": {"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}}, "required": ["kind"]}
    },
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "pets": {"type": "array", "items": {"$ref": "#/$defs/Pet"}, "maxItems": 3},
        "height": {"anyOf": [{"type": "number", "minimum": 0, "maximum": 3}, {"type": "null"}]},
    },
    "required": ["name", "age", "pets", "height"],
    "additionalProperties": False,
}
EXAMPLE = {"name": "Bob", "age": 3, "pets": [{"kind": "cat"}], "height": 1.7}
PRETTY = f"Answer in JSON like {json.dumps(EXAMPLE, indent=4)}"
NAMES = ["Ada", "Bo", "Chen", "Dora", "Émile", "Fatima", "Grace", "Hugo", "Ines", "Jun"]


def check_person(text):
    """What a validator of the schema would check."""
    value = json.loads(text)
    assert value.keys() == {"name", "age", "pets", "height"}
    assert isinstance(value["name"], str) and len(value["name"]) <= 40
    assert type(value["age"]) is int and 0 <= value["age"] <= 150
    assert len(value["pets"]) <= 3 and all(pet["kind"] in ("cat", "dog") for pet in value["pets"])
    assert value["height"] is None or 0 <= value["height"] <= 3


def body(name, **more):
    system = {"role": "system", "content": PRETTY}
    user = {"role": "user", "content": f"Describe a person called {name}, with pets."}
    return {"model": "smol", "messages": [system, user], "stream": False, "format": PERSON, **more}


async def test_every_answer_has_the_shape_and_ends_by_itself(smol_daemon):
    """JSON-1: none runs on in white space."""
    options = [{"temperature": 0, "num_predict": 2048}, {"temperature": 1.2, "seed": 7, "num_predict": 2048}]
    bodies = [body(name, options=each) for name in NAMES for each in options]
    for start in range(0, len(bodies), 5):
        answers = await asyncio.gather(
            *(smol_daemon.json("/api/chat", each) for each in bodies[start : start + 5])
        )
        for answer in answers:
            text = answer["message"]["content"]
            check_person(text)
            assert answer["done_reason"] == "stop"
            assert max((len(run) for run in re.findall(r"\s+", text)), default=0) <= 20


async def test_json_mode_gives_an_object(smol_daemon):
    prompt = "Give the capital and the population of France as JSON."
    options = {"temperature": 0.7, "seed": 1, "num_predict": 300, "stop": []}
    request = {"model": "smol", "prompt": prompt, "format": "json", "stream": False, "options": options}
    answer = await smol_daemon.json("/api/generate", request)
    if answer["done_reason"] == "stop":
        assert isinstance(json.loads(answer["response"]), dict)
    else:
        assert answer["response"].startswith("{")


async def test_stream_equals_whole_and_free_answers_are_what_they_are_alone(smol_daemon):
    greedy = {"temperature": 0, "num_predict": 60}
    free = {"model": "smol", "prompt": "The sky is", "stream": False, "options": greedy}
    alone = (await smol_daemon.json("/api/generate", free))["response"]
    bound = body("Zoe", options={"temperature": 0})
    together = await asyncio.gather(
        smol_daemon.json("/api/generate", free), smol_daemon.json("/api/chat", bound)
    )
    assert together[0]["response"] == alone
    streamed = await smol_daemon.post("/api/chat", bound | {"stream": True})
    lines = [json.loads(line) for line in (await streamed.text()).splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == together[1]["message"]["content"]

"""Prompts and answers that do not fit into a window, through a live daemon with scripted engines."""

import asyncio
import re

import pytest
from live_daemon import running, says
from tiny_model import CHATML, HERMES, add_model

from ftd.chat.templates import ChatTemplate
from ftd.daemon import completion

USER = [{"role": "user", "content": "hi"}]

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_num_ctx_on_v1_sizes_the_window_and_none_reloads(daemon):
    async def chat(**fields):
        await daemon.json("/v1/chat/completions", {"model": "tiny", "messages": USER, **fields})
        row = (await daemon.json("/api/ps"))["models"][0]
        return row["context_length"], daemon.services.manager.loaded()[0].pid

    window, pid = await chat(options={"num_ctx": 2048})
    assert window == 2048
    assert await chat() == (2048, pid)
    assert await chat(num_ctx=512) == (2048, pid)
    assert await chat(num_ctx=4096) == (4096, pid)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "x" * 900}]}),
        ("/api/generate", {"prompt": "x" * 900}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 900}]}),
        ("/v1/messages", {"messages": USER, "max_tokens": 600}),
        ("/api/embed", {"input": ["b", "x" * 900]}),
    ],
)
async def test_somebody_elses_small_window_is_no_limit(tmp_path, path, body):
    """A request that names no window gets what it would have got alone; no weights are read for that."""
    async with running(tmp_path) as daemon:
        small = {"model": "tiny", "messages": USER, "stream": False, "options": {"num_ctx": 512}}
        await daemon.json("/api/chat", small)
        pid = daemon.services.manager.loaded()[0].pid
        body = {"model": "tiny", "stream": False, **body}
        answer = await daemon.json(path, body)
        assert "truncated_tokens" not in answer
        row = daemon.services.manager.loaded()[0]
        assert (row.context_tokens, row.pid) == (4096, pid)
        assert (await daemon.json("/api/chat", small))["done"]
        # Who names a window keeps to it
        answer = await daemon.post(path, body | {"options": {"num_ctx": 512}, "num_ctx": 512})
        assert answer.status == 400 or path in ("/api/generate", "/v1/messages", "/api/embed")


LONG = [
    {"role": "system", "content": "rule"},
    *({"role": "user", "content": f"{n}" * 40} for n in range(5)),
    {"role": "user", "content": "last"},
]


async def test_long_chat_drops_the_oldest_messages_and_says_so(daemon):
    body = {"model": "tiny", "messages": LONG, "stream": False, "options": {"num_ctx": 200}}
    answer = await daemon.json("/api/chat", body)
    assert answer["truncated_messages"] == 2
    assert answer["truncated_tokens"] > 0
    assert answer["prompt_eval_count"] < 200
    body |= {"_debug_render_only": True}
    text = (await daemon.json("/api/chat", body))["_debug_info"]["rendered_template"]
    assert "rule" in text and "last" in text and "1111" not in text and "2222" in text


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
async def test_long_chat_without_truncation_is_refused_with_both_numbers(daemon, path):
    body = {"model": "tiny", "messages": LONG, "truncate": False, "options": {"num_ctx": 200}}
    response = await daemon.post(path, body)
    text = await response.text()
    assert response.status == 400
    assert re.search(r"longer than the context length .*: \d{3} tokens, the context length is 200", text)
    assert ("context_length_exceeded" in text) == path.startswith("/v1")


async def test_openai_never_truncates_by_itself(daemon):
    response = await daemon.post("/v1/chat/completions", {"model": "tiny", "messages": LONG, "num_ctx": 200})
    assert response.status == 400


async def test_last_message_that_does_not_fit_is_refused(daemon):
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "x" * 500}],
        "options": {"num_ctx": 200},
    }
    response = await daemon.post("/api/chat", body)
    assert response.status == 400 and "the context length is 200" in await response.text()


async def test_long_prompt_loses_its_middle(daemon):
    body = {"model": "tiny", "prompt": "a" * 90 + "z" * 10, "raw": True, "stream": False}
    body["options"] = {"num_ctx": 64, "num_keep": 4}
    answer = await daemon.json("/api/generate", body)
    assert answer["prompt_eval_count"] == 64 - (64 - 4) // 2
    assert answer["truncated_tokens"] == 100 - 34
    assert answer["response"].startswith("Hello")
    assert (await daemon.post("/api/generate", body | {"shift": False})).status == 400
    assert (await daemon.post("/api/generate", body | {"truncate": False})).status == 400


async def test_window_bounds_the_answer(tmp_path):
    async with running(tmp_path, says("a", endless=True)) as daemon:
        body = {"model": "tiny", "prompt": "xxxx", "raw": True, "stream": False, "options": {"num_ctx": 10}}
        for shift, count in ((False, 6), (True, 100), (None, 100)):  # an endless text gets an end
            answer = await daemon.json("/api/generate", body | {"shift": shift})
            assert (answer["done_reason"], answer["eval_count"]) == ("length", count)


async def test_shift_reaches_the_engine_and_its_loss_is_told(tmp_path, module_control):
    """No silence: what left the window is in the last object of every API."""
    async with running(tmp_path, module_control.command()) as daemon:
        messages = [{"role": "user", "content": "hi"}]
        worker = None
        for path, more, num_keep, said in (
            ("/api/chat", {}, 4, lambda body: body["shifted_tokens"]),
            ("/api/chat", {"options": {"num_keep": 7}}, 7, lambda body: body["shifted_tokens"]),
            ("/api/chat", {"shift": False}, -1, lambda body: body.get("shifted_tokens")),
            ("/v1/chat/completions", {}, -1, lambda body: body["usage"].get("shifted_tokens")),
            ("/v1/chat/completions", {"shift": True}, 4, lambda body: body["usage"]["shifted_tokens"]),
            ("/v1/messages", {"max_tokens": 9}, -1, lambda body: body["usage"].get("shifted_tokens")),
        ):
            body = {"model": "tiny", "messages": messages, "stream": False, **more}
            asked = asyncio.create_task(daemon.json(path, body))
            if worker is None:
                worker = await module_control.next_worker()
                worker.ready()
            message = await worker.received("generate")
            assert message["num_keep"] == num_keep
            shifted = 11 if num_keep >= 0 else 0
            worker.finish(message["request_id"], shifted_tokens=shifted)
            assert said(await asked) == (shifted or None)


async def rendered(daemon, path="/api/chat", **body):
    """The text of the prompt that a request makes."""
    body = {"model": "tiny", "_debug_render_only": True, "stream": False, **body}
    return (await daemon.json(path, body))["_debug_info"]["rendered_template"]


TURNS = [{"role": role, "content": f"{n}{role[0]}" * 20} for n in range(4) for role in ("user", "assistant")]
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}" + CHATML
)


@pytest.mark.parametrize("window", (60, 119, 120, 121, 260, 400))
async def test_as_many_of_the_last_messages_as_fit(daemon, window):
    """Against counting by hand: of the vocabulary every byte is an id, every mark one more."""
    messages = [*TURNS, {"role": "user", "content": "last"}]
    costs = [len(m["role"]) + 1 + len(m["content"]) + 3 for m in messages]
    assistant = len("assistant") + 2
    first = next(i for i in range(len(costs)) if sum(costs[i:]) + assistant < window)
    body = {"messages": messages, "options": {"num_ctx": window}, "model": "tiny", "stream": False}
    answer = await daemon.json("/api/chat", body)
    assert answer["prompt_eval_count"] == sum(costs[first:]) + assistant
    assert answer.get("truncated_messages", 0) == first
    assert answer.get("truncated_tokens", 0) == sum(costs[:first])


async def test_a_chat_far_longer_than_the_window_is_rendered_whole_only_once(daemon, monkeypatch):
    """Of 2,000 messages about 25 fit; looking for them by halving rendered 2,000 more."""
    lengths = []

    async def render(self, messages, **wishes):
        lengths.append(len(messages))
        return await plain_render(self, messages, **wishes)

    plain_render = ChatTemplate.render
    monkeypatch.setattr(ChatTemplate, "render", render)
    messages = [{"role": "user", "content": f"{n:04}"} for n in range(2000)]
    body = {"messages": messages, "options": {"num_ctx": 330}, "model": "tiny", "stream": False}
    answer = await daemon.json("/api/chat", body)
    assert 2000 - answer["truncated_messages"] == (330 - 12) // 12
    assert lengths[0] == 2000 and sum(lengths[1:]) < 300


async def test_what_is_left_of_a_cut_conversation_may_begin_with_an_answer(tmp_path):
    """A template that refuses that gets an empty question in front, and the request its answer."""
    async with running(tmp_path, models=()) as daemon:
        add_model(daemon.store, "tiny", template=ALTERNATING)
        messages = [*TURNS, {"role": "user", "content": "last"}]
        for window in (300, 220, 140, 60):
            text = await rendered(daemon, messages=messages, options={"num_ctx": window})
            assert "<|im_start|>user\nlast<|im_end|>" in text and "0u" not in text
            assert text.startswith("<|im_start|>user\n")


async def test_system_messages_stay_wherever_they_stand(daemon):
    messages = [
        *TURNS[:2],
        {"role": "system", "content": "rule"},
        *TURNS[2:],
        {"role": "user", "content": "q"},
    ]
    text = await rendered(daemon, messages=messages, options={"num_ctx": 160})
    assert text.startswith("<|im_start|>system\nrule<|im_end|>") and text.count("rule") == 1
    assert "0u" not in text and "3a" in text


async def test_whether_a_tool_is_strict_is_not_the_models_concern(tmp_path):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    strict = {**tool, "function": {**tool["function"], "strict": True}}
    async with running(tmp_path, models=()) as daemon:
        add_model(daemon.store, "tiny", template=HERMES)
        texts = {await rendered(daemon, messages=USER, tools=[each]) for each in (tool, strict)}
        (text,) = texts
        assert '"name": "f"' in text and "strict" not in text


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"context": [260]}, 400, "context has an id outside of the vocabulary: 260"),
        ({"context": [1, 2**40]}, 400, f"outside of the vocabulary: {2**40}"),
        ({"context": [-1]}, 400, "field context must be an array of token ids"),
        ({"context": [1.5]}, 400, "field context must be an array of token ids"),
        ({"suffix": "end"}, 400, "does not support insert"),
        ({"raw": True, "system": "s"}, 400, "raw mode does not support"),
        ({"raw": True, "context": [1]}, 400, "raw mode does not support"),
    ],
)
async def test_prompts_that_cannot_be_made(daemon, body, status, text):
    answer = await daemon.json("/api/generate", {"model": "tiny", "prompt": "x", **body}, status)
    assert text in answer["error"]


async def test_context_goes_before_what_is_rendered(daemon):
    body = {"model": "tiny", "prompt": "x", "stream": False, "context": [*b"before"]}
    plain = await daemon.json("/api/generate", body | {"context": []})
    answer = await daemon.json("/api/generate", body)
    assert answer["prompt_eval_count"] == plain["prompt_eval_count"] + 6
    assert answer["context"] == [*b"before", *plain["context"]]


async def test_a_template_of_the_request_may_have_a_place_for_a_suffix(daemon):
    body = {
        "prompt": "def f():",
        "suffix": "return 1",
        "template": "<PRE>{{ .Prompt }}<SUF>{{ .Suffix }}<MID>",
    }
    assert await rendered(daemon, "/api/generate", **body) == "<PRE>def f():<SUF>return 1<MID>"


async def test_a_long_prompt_has_the_ids_of_a_short_one(daemon):
    """Texts of over 2,048 characters are encoded in a thread."""
    text = "é<|im_end|> " * 300
    body = {"model": "tiny", "prompt": text, "raw": True, "stream": False}
    counts = [
        (await daemon.json("/api/generate", body | {"prompt": text * n}))["prompt_eval_count"] for n in (1, 2)
    ]
    short = (await daemon.json("/api/generate", body | {"prompt": "é<|im_end|> "}))["prompt_eval_count"]
    assert counts == [300 * short, 600 * short]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/v1/chat/completions", "/v1/messages"])
async def test_a_prompt_longer_than_any_window_is_refused_before_it_is_rendered(daemon, monkeypatch, path):
    monkeypatch.setattr(completion, "MAX_PROMPT_CHARS", 10)
    text = "more than ten characters"
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "prompt": text, "max_tokens": 5}
    error = (await daemon.json(path, body, 400))["error"]
    words = f"the prompt has {len(text)} characters, more than any model takes: 10"
    assert words in (error if isinstance(error, str) else error["message"])

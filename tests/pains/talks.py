"""What the tests of rows send, and an engine that answers as a test says."""

import asyncio

from tiny_model import ids_of

USER = [{"role": "user", "content": "hi"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "write",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "n": {"type": "integer"}},
        },
    },
}
ANTHROPIC_TOOL = {"name": "write", "input_schema": TOOL["function"]["parameters"]}
BODIES = {
    "/api/chat": {"messages": USER, "stream": False},
    "/api/generate": {"prompt": "hi", "stream": False},
    "/api/embed": {"input": "hi"},
    "/api/embeddings": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
}
CHATS = ("/api/chat", "/v1/chat/completions", "/v1/responses", "/v1/messages")


class Scripted:
    """A daemon whose one engine answers with whatever text a test gives it."""

    def __init__(self, daemon, control):
        self.daemon, self.control, self.worker = daemon, control, None

    async def post(self, path, body, reply):
        """Send a request, let the engine answer ``reply``, return the response."""
        asked = asyncio.create_task(self.daemon.post(path, {"model": "tiny", **body}))
        if self.worker is None:
            self.worker = await self.control.next_worker()
            self.worker.ready()
        message = await self.worker.received("generate")
        for token in ids_of(reply):
            self.worker.send("tokens", request_id=message["request_id"], ids=[token])
        self.worker.finish(message["request_id"], output_tokens=len(ids_of(reply)))
        while not asked.done() and not self.worker.reader.at_eof():
            done, _ = await asyncio.wait({asked}, timeout=5)
            assert done, "no answer"
        return await asked


def text_of(path, answer):
    """The content of an answer that was not streamed."""
    if path == "/api/chat":
        return answer["message"]["content"]
    if path == "/api/generate":
        return answer["response"]
    if path == "/v1/chat/completions":
        return answer["choices"][0]["message"]["content"]
    if path == "/v1/responses":
        parts = [item["content"][0]["text"] for item in answer["output"] if item["type"] == "message"]
        return "".join(parts)
    return "".join(block.get("text", "") for block in answer["content"])

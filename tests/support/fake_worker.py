"""A scripted engine: speaks ``engine.messages`` on FD, computes nothing.

    python fake_worker.py SCRIPT_JSON FD

Keys of the script, all optional:
    reply        ids to answer every Generate with (default: the prompt's own ids)
    rules        [[pattern, ids], …]: the first regular expression found in the prompt answers instead of
                 ``reply``; ids below 256 are UTF-8 bytes, any other is U+0000
    remembers    count the ids that a prompt has in common with the start of an earlier one as cached
    interval_s   pause before each token; with 0 all tokens go out at once
    endless      repeat ``reply`` until cancelled
    crash_after  end with status 7 and a line on stderr after this many tokens
    fail_load    [kind, message] answered to Load
    crash_load   text printed on stderr before exiting with status 3 in the middle of Load
    silent_load  never answer Load
    stats        fields of Stats that are not 0
    device_bytes of Ready
    control      path of a listening Unix socket: nothing is answered by itself; each message received goes
                 up as a JSON line and frames to send come down as JSON lines
                 ({"send": {...message...}} | {"exit": status, "stderr": text} | {"raw": hex})
"""

import json
import os
import re
import selectors
import socket
import struct
import sys
import time

# Tests start hundreds of these, and typing_extensions is a third of each start; msgspec does without
sys.modules["typing_extensions"] = None

import msgspec  # noqa: E402

from ftd.engine import messages  # noqa: E402
from ftd.engine.messages import (  # noqa: E402
    Embed,
    Embedded,
    Failed,
    Finished,
    Generate,
    GetStats,
    Grow,
    Load,
    Progress,
    Ready,
    Stats,
    TokenLogprob,
    Tokens,
    Unload,
)

WIDTH = 4


def _by_rule(message, script):
    rules = script.get("rules", ())
    prompt = (
        bytes(token if token < 256 else 0 for token in message.ids).decode(errors="replace") if rules else ""
    )
    return next((ids for pattern, ids in rules if re.search(pattern, prompt)), None)


def _common_len(first, second):
    pairs = enumerate(zip(first, second, strict=False))
    return next((idx for idx, (a, b) in pairs if a != b), min(len(first), len(second)))


class Answer:
    """One Generate being answered."""

    def __init__(self, message, script, earlier=()):
        self.message = message
        self.cached_tokens = max((_common_len(message.ids, ids) for ids in earlier), default=0)
        self.ids = list(_by_rule(message, script) or script.get("reply") or message.ids)
        self.endless = script.get("endless", False)
        self.sent = 0
        self.started_ns = time.perf_counter_ns()

    def next_tokens(self):
        """The next Tokens, or None when the answer is over."""
        limit = self.message.max_tokens
        if (0 < limit <= self.sent) or (self.sent >= len(self.ids) and not self.endless):
            return None
        token = self.ids[self.sent % len(self.ids)]
        if token in self.message.stop_ids:
            return None
        self.sent += 1
        logprobs = None
        if self.message.num_logprobs >= 0:
            top = [(token, -0.25), (token + 1, -1.5)][: self.message.num_logprobs]
            logprobs = [TokenLogprob(token, -0.25, top)]
        return Tokens(request_id=self.message.request_id, ids=[token], logprobs=logprobs)

    def finished(self, reason=None):
        limit = self.message.max_tokens
        reason = reason or ("length" if 0 < limit <= self.sent else "stop")
        return Finished(
            request_id=self.message.request_id,
            reason=reason,
            prompt_tokens=len(self.message.ids),
            cached_tokens=self.cached_tokens,
            output_tokens=self.sent,
            queue_ns=1000,
            prefill_ns=2000,
            decode_ns=3000 * self.sent,
        )


class FakeWorker:
    def __init__(self, script, engine_socket):
        self.script = script
        self.engine = engine_socket
        self.pending = b""
        self.answers = {}
        self.earlier = []
        self.tokens_sent = 0
        self.control = None
        if "control" in script:
            self.control = socket.socket(socket.AF_UNIX)
            self.control.connect(script["control"])
            self.control_pending = b""
            self.report({"type": "started", "pid": os.getpid()})

    def report(self, value):
        self.control.sendall(json.dumps(value).encode() + b"\n")

    def send(self, message):
        self.engine.sendall(messages.encode(message))

    def run(self):
        selector = selectors.DefaultSelector()
        selector.register(self.engine, selectors.EVENT_READ, self.read_engine)
        if self.control is not None:
            selector.register(self.control, selectors.EVENT_READ, self.read_control)
        interval_s = self.script.get("interval_s", 0)
        while True:
            timeout = interval_s if self.answers else None
            for key, _ in selector.select(timeout):
                key.data()
            self.step()

    def read_engine(self):
        data = self.engine.recv(1 << 20)
        if not data:
            sys.exit(0)
        self.pending += data
        while len(self.pending) >= 4:
            (size,) = struct.unpack_from("<I", self.pending)
            if len(self.pending) < 4 + size:
                return
            body, self.pending = self.pending[4 : 4 + size], self.pending[4 + size :]
            self.receive(messages.decode_down(body))

    def read_control(self):
        data = self.control.recv(1 << 20)
        if not data:
            sys.exit(0)
        self.control_pending += data
        *lines, self.control_pending = self.control_pending.split(b"\n")
        for line in lines:
            self.obey(json.loads(line))

    def obey(self, command):
        if "send" in command:
            self.send(msgspec.convert(command["send"], messages.Up))
        if "raw" in command:
            self.engine.sendall(bytes.fromhex(command["raw"]))
        if "exit" in command:
            if command.get("stderr"):
                print(command["stderr"], file=sys.stderr, flush=True)
            os._exit(command["exit"])

    def receive(self, message):
        if self.control is not None:
            self.report(msgspec.to_builtins(message))
            if isinstance(message, Unload):
                sys.exit(0)
            return
        match message:
            case Load() | Grow():
                self.load(message)
            case Generate():
                self.answers[message.request_id] = Answer(message, self.script, self.earlier)
                if self.script.get("remembers"):
                    self.earlier.append(message.ids)
            case Embed():
                self.embed(message)
            case GetStats():
                zeros = dict.fromkeys(Stats.__struct_fields__, 0)
                values = {"expert_split": [], "running": len(self.answers), **self.script.get("stats", {})}
                self.send(Stats(**{**zeros, **values}))
            case Unload():
                sys.exit(0)
            case messages.Cancel():
                answer = self.answers.pop(message.request_id, None)
                if answer is not None:
                    self.send(answer.finished("abort"))

    def load(self, message):
        script = self.script
        if script.get("silent_load"):
            return
        if "crash_load" in script:
            print(script["crash_load"], file=sys.stderr, flush=True)
            os._exit(3)
        if "fail_load" in script:
            kind, text = script["fail_load"]
            self.send(Failed(kind=kind, message=text))
            return
        self.send(Progress(completed_bytes=50, total_bytes=100))
        self.send(
            Ready(
                context_tokens=message.context_tokens,
                weight_bytes=1000,
                kv_bytes=200,
                workspace_bytes=30,
                num_threads=1,
                device="cuda" if getattr(message, "device", "") == "cuda" else "cpu",
                load_ns=5,
                kernels={},
                device_bytes=script.get("device_bytes", 0),
            )
        )

    def embed(self, message):
        vectors = [[float(len(ids)), *map(float, [*ids, 0, 0, 0][: WIDTH - 1])] for ids in message.sequences]
        data = b"".join(struct.pack(f"<{WIDTH}f", *vector) for vector in vectors)
        count = sum(map(len, message.sequences))
        self.send(Embedded(request_id=message.request_id, width=WIDTH, data=data, prompt_tokens=count))

    def step(self):
        """One token of every answer; with no pause, all of them."""
        for request_id, answer in list(self.answers.items()):
            while True:
                tokens = answer.next_tokens()
                if tokens is None:
                    self.send(answer.finished())
                    del self.answers[request_id]
                    break
                self.send(tokens)
                self.tokens_sent += 1
                if self.tokens_sent == self.script.get("crash_after"):
                    print("fake worker: out of luck", file=sys.stderr, flush=True)
                    os._exit(7)
                if self.script.get("interval_s"):
                    break


if __name__ == "__main__":
    FakeWorker(json.loads(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))).run()

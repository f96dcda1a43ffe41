"""One request for text, from its checks to its last event; every API's route runs this.

find model ──▶ check ──▶ lease an engine ──▶ prompt ──▶ generate ──▶ Delta … Done ──▶ one line in the log
"""

import asyncio
import itertools
import logging
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import msgspec
from msgspec.structs import replace

from ftd import log
from ftd.api.request import CompletionRequest, Delta, Done, Event
from ftd.chat import options as chat_options
from ftd.chat.callformats import CallFormat, call_format
from ftd.chat.harmony import HarmonyParser
from ftd.chat.options import Options
from ftd.chat.output import OutputParser, TaggedParser
from ftd.chat.templates import ChatTemplate
from ftd.chat.thinking import ThinkingSplitter
from ftd.chat.toolcalls import ToolCallParser
from ftd.daemon import constraint
from ftd.daemon import prompt as prompts
from ftd.daemon.answer import AnswerText
from ftd.daemon.catalog import Catalog, Model
from ftd.daemon.load_spec import LoadSpec
from ftd.daemon.loaded import Lease
from ftd.daemon.manager import ModelManager
from ftd.daemon.metrics import Metrics
from ftd.daemon.modelinfo import ModelInfo
from ftd.daemon.prompt import Prompt
from ftd.engine.messages import Finished, Generate, Grammar, SamplingParams, Tokens
from ftd.errors import EngineError, PromptTooLong, Unsupported

logger = logging.getLogger(__name__)

# A stream says nothing for this long at most while text is held back (a tool call that is still growing)
SILENCE_NS = 1_000_000_000
# An answer that has no end of its own gets one
WINDOWS_PER_ANSWER = 10
# Millions of tokens
MAX_PROMPT_CHARS = 16 << 20
_log_ids = itertools.count(1)


class RenderedPrompt(msgspec.Struct, frozen=True):
    """Answer to a request that only wants to see its prompt."""

    text: str


class Completions:
    """Runs requests on whatever engine serves their model."""

    def __init__(self, catalog: Catalog, manager: ModelManager, metrics: Metrics) -> None:
        self._catalog = catalog
        self._manager = manager
        self._metrics = metrics

    async def unload(self, name: str) -> Done:
        """Unload a model when it is idle; it need not be loaded, but it must exist."""
        found, manifest = await self._catalog.find(name)
        self._manager.expire(manifest.config.digest, found)
        return Done(reason="unload")

    async def count(self, request: CompletionRequest) -> int:
        """Return how many tokens the prompt of a request has; nothing is loaded for it."""
        model = await self._catalog.get(request.model)
        options = chat_options.merge(request.options, model.info.parameters)
        request = _checked(model.info, request)
        return len((await prompts.build(self._catalog, model, request, options, sys.maxsize)).ids)

    async def run(
        self, request: CompletionRequest, begin: Callable[[int], None] = lambda prompt_tokens: None
    ) -> AsyncGenerator[Event | RenderedPrompt, None]:
        """Yield the events of one answer; closing the generator cancels the request in the engine.

        ``begin`` is told how many tokens the prompt has, before the first event.
        """
        started_ns = time.perf_counter_ns()
        if request.is_empty and request.keep_alive_ns == 0:
            yield await self.unload(request.model)
            return
        # The vocabulary is read and the template's process starts while the engine loads
        info, reading = await self._catalog.begin(request.model)
        request = _checked(info, request)
        options = chat_options.merge(request.options, info.parameters)
        grammar = ""
        if request.format is not None or request.tools:
            # A schema that is none is refused before anything is loaded for it
            grammar = await asyncio.to_thread(constraint.text_of, await reading, request)
        spec = LoadSpec(
            info=info, num_ctx=options.num_ctx, num_threads=options.num_thread, device=options.device
        )
        if request.is_empty:
            async with self._manager.lease(spec, request.keep_alive_ns):
                await reading
                yield Done(reason="load")
            return
        async with self._prompted(spec, request, options, reading) as (lease, model, prompt, leased_ns):
            if request.render_only:
                yield RenderedPrompt(prompt.text)
                return
            if grammar and not lease.runner.has_vocabulary:
                vocabulary = await asyncio.to_thread(constraint.vocabulary, model.tokenizer)
                if not lease.runner.has_vocabulary:  # another request may have taught it meanwhile
                    lease.runner.teach(vocabulary)
            begin(len(prompt.ids))
            run = _Run(model, request, options, grammar, prompt, lease, started_ns, leased_ns - started_ns)
            try:
                async with aclosing(run.events()) as events:
                    async for event in events:
                        yield event
            finally:
                run.count(self._metrics)

    @asynccontextmanager
    async def _prompted(
        self, spec: LoadSpec, request: CompletionRequest, options: Options, reading: Awaitable[Model]
    ) -> AsyncGenerator[tuple[Lease, Model, Prompt, int], None]:
        """Hold an engine, and give the model, the prompt and when the engine was there.

        A request that names no window takes the one that is loaded, unless it does not fit there.
        """
        wider: LoadSpec | None = None
        async with self._manager.lease(spec, request.keep_alive_ns) as lease:
            leased_ns, model = time.perf_counter_ns(), await reading
            try:
                prompt = await prompts.build(self._catalog, model, request, options, lease.context_tokens)
            except PromptTooLong:
                wider = self._manager.wider(spec, lease.context_tokens)
                if wider is None:
                    raise
            else:
                if prompt.truncated_tokens or len(prompt.ids) + options.num_predict > lease.context_tokens:
                    wider = self._manager.wider(spec, lease.context_tokens)
                if wider is None:
                    yield lease, model, prompt, leased_ns
                    return
        async with self._manager.lease(wider, request.keep_alive_ns) as lease:
            leased_ns = time.perf_counter_ns()
            prompt = await prompts.build(self._catalog, model, request, options, lease.context_tokens)
            yield lease, model, prompt, leased_ns


def _checked(info: ModelInfo, request: CompletionRequest) -> CompletionRequest:
    """Refuse what the model cannot do; a model that can think does, unless told otherwise."""
    can = info.capabilities
    if "completion" not in can:
        verb = "chat" if request.is_chat else "generate"
        raise Unsupported(f'"{request.model}" does not support {verb}', "use a model that completes text")
    num_chars = len(request.prompt) + sum(
        len(message.get("content") or "") for message in request.messages or ()
    )
    if num_chars > MAX_PROMPT_CHARS:
        raise PromptTooLong(
            f"the prompt has {num_chars} characters, more than any model takes: {MAX_PROMPT_CHARS}",
            "shorten the prompt",
        )
    if request.tools and "tools" not in can:
        raise Unsupported(f"{info.name.full} does not support tools", "leave tools out")
    if request.think is None:
        return replace(request, think=True) if "thinking" in can else request
    if request.think and "thinking" not in can:
        if request.is_think_optional:
            return replace(request, think=None)
        raise Unsupported(f'"{request.model}" does not support thinking', "leave think out")
    return request


class _Run:
    """One answer in the making."""

    def __init__(
        self,
        model: Model,
        request: CompletionRequest,
        options: Options,
        grammar: str,
        prompt: Prompt,
        lease: Lease,
        started_ns: int,
        load_ns: int,
    ) -> None:
        self._model = model
        self._request = request
        self._options = options
        self._grammar = grammar
        self._prompt = prompt
        self._lease = lease
        self._started_ns = started_ns
        self._load_ns = load_ns
        self._first_token_ns = 0
        self._reason = "cancelled"
        self._cached_tokens = 0
        self._text = self._answer_text()

    def _answer_text(self) -> AnswerText:
        template, tokenizer, stops = self._prompt.template, self._model.tokenizer, self._options.stop
        if template is None:
            return AnswerText(tokenizer, stops)
        calls, tools = call_format(template.kind, template.source), self._request.tools
        max_calls = 0 if self._request.tool_choice.is_parallel else 1
        if calls.is_harmony:
            parser: OutputParser = HarmonyParser(tools)
            return AnswerText(tokenizer, stops, parser, marks=calls.marks, max_calls=max_calls)
        parser = TaggedParser(self._splitter(template), self._call_parser(calls))
        marks = "".join((*(template.thinking_tags or ()), calls.marks if tools else ""))
        return AnswerText(tokenizer, stops, parser, marks=marks, max_calls=max_calls)

    def _splitter(self, template: ChatTemplate) -> ThinkingSplitter | None:
        tags = template.thinking_tags
        if tags is None:
            return None
        is_off = not self._request.think
        return ThinkingSplitter(*tags, inside=self._prompt.is_thinking and not is_off, is_off=is_off)

    def _call_parser(self, calls: CallFormat) -> ToolCallParser | None:
        if not self._request.tools:
            return None
        # Where a format binds the answer, every answer begins as a call that is bare JSON does
        is_format = self._request.format is not None and not self._request.tool_choice.is_forced
        return None if calls.is_bare and is_format else ToolCallParser(calls, self._request.tools)

    def _message(self) -> Generate:
        return Generate(
            request_id=self._lease.runner.next_request_id(),
            ids=list(self._prompt.ids),
            max_tokens=self._max_tokens(),
            stop_ids=sorted(self._model.tokenizer.eos_ids),
            sampling=SamplingParams(**self._options.sampling),
            num_logprobs=self._request.num_logprobs,
            window_tokens=self._lease.context_tokens,
            num_keep=self._num_keep() if self._request.shift else -1,
            grammar=self._bound(),
        )

    def _max_tokens(self) -> int:
        """Return the most tokens of the answer: what was asked for, and what there is room for."""
        wanted, window_tokens = self._options.num_predict, self._lease.context_tokens
        room_tokens = window_tokens - len(self._prompt.ids)
        if self._request.shift:
            room_tokens = WINDOWS_PER_ANSWER * window_tokens
        return room_tokens if wanted < 0 else min(max(wanted, 1), room_tokens)

    def _num_keep(self) -> int:
        """Return how many ids at the start of the prompt stay when a full window makes room."""
        num_keep = self._options.num_keep
        kept = len(self._prompt.ids) if num_keep < 0 else num_keep + self._model.tokenizer.add_bos
        return min(kept, self._lease.context_tokens - 2)

    def _bound(self) -> Grammar | None:
        if not self._grammar:
            return None
        return constraint.grammar(self._grammar, self._request, self._prompt, self._model.tokenizer)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield deltas as the engine sends tokens, then Done."""
        message, runner = self._message(), self._lease.runner
        is_mute = self._options.num_predict == 0  # the prompt is computed, nothing is answered
        finished: Finished | None = None
        said_ns = time.perf_counter_ns()
        reason = "cancelled"
        try:
            async with aclosing(runner.generate(message)) as replies:
                async for reply in replies:
                    if isinstance(reply, Finished):
                        finished = reply
                        break
                    if is_mute or self._text.is_stopped:
                        continue
                    delta = self._push(reply)
                    if self._text.is_stopped:
                        runner.cancel(message.request_id)
                    now_ns = time.perf_counter_ns()
                    if not delta.is_empty or now_ns - said_ns >= SILENCE_NS:
                        said_ns = now_ns
                        yield delta
            if finished is None:
                raise EngineError(f"engine ended request {message.request_id} without an answer")
            last = Delta() if is_mute else self._text.finish()
            if not last.is_empty:
                yield last
            done = self._done(finished)
            reason = done.reason
            yield done
        except EngineError as exc:
            reason = type(exc).__name__
            raise
        finally:
            self._log(reason, finished)

    def _push(self, tokens: Tokens) -> Delta:
        if not self._first_token_ns:
            self._first_token_ns = time.perf_counter_ns()
        return self._text.push(tokens)

    def _done(self, finished: Finished) -> Done:
        reason = "stop" if self._text.is_stopped else finished.reason
        if reason == "abort":
            raise EngineError("the engine aborted the request")
        is_raw = self._request.is_chat or self._request.raw
        return Done(
            reason=reason,
            stop=self._text.stop,
            total_ns=time.perf_counter_ns() - self._started_ns,
            load_ns=self._load_ns,
            prompt_tokens=finished.prompt_tokens,
            prompt_ns=finished.prefill_ns,
            cached_tokens=finished.cached_tokens,
            output_tokens=self._text.num_tokens,
            output_ns=finished.decode_ns,
            context=None if is_raw else [*self._prompt.ids, *self._text.ids],
            truncated_messages=self._prompt.truncated_messages,
            truncated_tokens=self._prompt.truncated_tokens,
            shifted_tokens=finished.shifted_tokens,
        )

    def count(self, metrics: Metrics) -> None:
        """Add what this answer took, whole or not, to the metrics."""
        model = self._model.info.name.display
        metrics.add("ftd_requests_total", model=model, reason=self._reason)
        metrics.add("ftd_prompt_tokens_total", len(self._prompt.ids), model=model)
        metrics.add("ftd_cached_tokens_total", self._cached_tokens, model=model)
        metrics.add("ftd_output_tokens_total", self._text.num_tokens, model=model)
        metrics.observe("ftd_request_seconds", (time.perf_counter_ns() - self._started_ns) / 1e9)
        if self._first_token_ns:
            metrics.observe("ftd_first_token_seconds", (self._first_token_ns - self._started_ns) / 1e9)

    def _log(self, reason: str, finished: Finished | None) -> None:
        self._reason = reason
        self._cached_tokens = finished.cached_tokens if finished else 0
        first_ns = self._first_token_ns - self._started_ns if self._first_token_ns else 0
        decode_ns = finished.decode_ns if finished else time.perf_counter_ns() - self._first_token_ns
        rate = self._text.num_tokens / (decode_ns / 1e9) if self._first_token_ns and decode_ns else 0.0
        values = {
            "id": next(_log_ids),
            "model": self._model.info.name.display,
            "prompt": len(self._prompt.ids),
            "cached": self._cached_tokens,
            "output": self._text.num_tokens,
            "first_token_ms": first_ns / 1e6,
            "tokens_per_s": rate,
            "reason": reason,
        }
        if self._prompt.truncated_tokens:
            values["truncated_tokens"] = self._prompt.truncated_tokens
            values["truncated_messages"] = self._prompt.truncated_messages
        if finished and finished.shifted_tokens:
            values["shifted_tokens"] = finished.shifted_tokens
        logger.info(log.fields("request done", **values))

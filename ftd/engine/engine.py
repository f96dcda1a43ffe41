"""The step loop's body: requests become sequences, one step computes all that are scheduled, ids go up.

    generate/embed ─▶ scheduler ─▶ batch ─▶ model.run ─▶ sample ─▶ advance ─▶ Tokens, Finished, Embedded

Owns the model, the pages and the scheduler of one loaded model. One thread calls everything here. What a
request may do is checked when it arrives; after that nothing about it can fail.
"""

import contextlib
import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import msgspec

from ftd import log
from ftd.engine import answers, card_loader, expert_graph, loader, model_config, report, sizing
from ftd.engine.batch import Batch, StepArrays
from ftd.engine.choosing import HostChooser, Wait, depends_on_history
from ftd.engine.embedder import Embedder
from ftd.engine.grammar import Grammars
from ftd.engine.graphs import Graph
from ftd.engine.messages import Embed, Generate, Load, Ready, Stats, Up, Vocabulary
from ftd.engine.model import Model
from ftd.engine.models import families
from ftd.engine.pages import PagePool
from ftd.engine.prefix_cache import PrefixCache
from ftd.engine.sampler import Sampler
from ftd.engine.scheduler import Scheduler
from ftd.engine.sequence import Sequence
from ftd.engine.slots import StateSlots
from ftd.errors import FtdError, InvalidOption, InvalidRequest
from ftd.kernels import dispatch
from ftd.kernels._pool import Pool

logger = logging.getLogger(__name__)

# With nothing else to do, the step loop looks at its messages this often while it waits for a grammar
COMPILER_S = 0.01


@dataclass(slots=True)
class _Running:
    """A step that has begun: ``wait`` returns what it chose."""

    batch: Batch
    wait: Wait
    started_ns: int
    has_prefill: bool = False
    can_run_ahead: bool = False


class Engine:
    """Loads the model that ``load`` names and serves requests on it; ``send`` takes messages to the daemon.

    ``progress(completed_bytes, total_bytes)`` is called while weights are read and may raise to stop the
    load; ``source`` stands in for the files that ``load`` names. Between calls every page has one owner;
    ``load.debug_checks`` asserts it after each step.
    """

    def __init__(
        self,
        load: Load,
        send: Callable[[Up], None],
        progress: loader.Progress = lambda done, total: None,
        source: loader.Source | None = None,
    ) -> None:
        started_ns = time.monotonic_ns()
        self._send = send
        self._debug_checks = load.debug_checks
        if source is None:
            blob_paths = {digest: Path(path) for digest, path in load.blob_paths.items()}
            source = loader.Files(Path(load.config_path), blob_paths)
        file_config = source.config
        self.config = model_config.make(file_config.architecture, file_config.hyperparameters)
        families.get(self.config.architecture)
        self._file_config = file_config
        kept = source.placed.kept_bytes if isinstance(source, card_loader.Kept) else (0, False)
        self.device, sizes = sizing.place(load, sizing.Model(file_config, self.config, source.outline, *kept))
        self.plan = sizes.plan
        self._memory = report.planned(self.device, sizes, load)
        self._placed = card_loader.place(source, self.device, sizes, progress)
        self.weights = self._placed.weights
        # The thread that answers a card is one of the pool's; this one needs a core of its own
        self.threads = Pool(load.num_threads or self.device.num_threads())
        kept_experts = source.experts if isinstance(source, card_loader.Kept) else None
        make_graph, self._experts = expert_graph.make(
            self.device, sizes, self.config, load, self.threads, kept_experts
        )
        self.model = self._make_model(make_graph, load.precision)
        if self._experts is not None:
            self._experts.split()
        self.read_bytes, self.read_ns = self._placed.read
        if unused := self.weights.unused():
            logger.warning(log.fields("tensors unused", num=len(unused), first=unused[0]))
        if self.device.name == "cuda" and self._placed.files is None:
            self.weights.release()
        self._pages = PagePool(self.plan.num_pages)
        slots = StateSlots.over(self.model.state_pool, self.plan)
        self._prefix_cache = PrefixCache(self._pages, self.plan.page_size, slots.drop if slots else None)
        self._scheduler = Scheduler(self.plan, self._pages, self._prefix_cache, slots)
        self._arrays = StepArrays(self.plan)
        self._sampler = Sampler(self.config.vocab_size)
        self._host_chooser = HostChooser(self._sampler, self.config.vocab_size)
        self._device_chooser = self.device.make_chooser(self.config.vocab_size, self.plan.max_sequences)
        self._ahead: _Running | None = None
        self._last_end_ns = 0
        self._grammars = Grammars()
        self._compiling: list[Sequence] = []  # their grammars are not ready; not in the scheduler yet
        self._embedder = Embedder(send)
        self._request_ids: set[int] = set()
        self._failures: dict[int, FtdError] = {}
        self._prefill_ns = self._decode_ns = self.graph_ns = 0
        self.load_ns = time.monotonic_ns() - started_ns
        self._ready(load.precision)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker threads and unlock memory."""
        self._grammars.close()
        if self._experts is not None:
            self._experts.pool.close()
        self._placed.close()
        self.threads.close()

    def grown(self, load: Load) -> "Engine":
        """Return an engine with the window that ``load`` names over the same weights; this one has ended.

        Slots of experts give way to keys and values; the hottest stay. Raises InvalidRequest while there is
        work, OutOfMemory where the window does not fit.
        """
        if self.has_work or not self._placed.can_stay:
            raise InvalidRequest("the window grows only between requests, with weights that stay")
        experts, self._experts = None if self._experts is None else self._experts.pool.leave(), None
        self.threads.close()
        kept = card_loader.Kept(self._file_config, self._placed, experts)
        del self.model, self._arrays, self._scheduler, self._prefix_cache, self._pages, self._device_chooser
        gc.collect()  # keys and values of the old window are free before the new ones are measured
        self.device.release()
        load = msgspec.structs.replace(load, device=self.device.name)
        engine = Engine(load, self._send, source=kept)
        engine._grammars = self._grammars
        return engine

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would compute something."""
        return self._scheduler.has_work or bool(self._compiling)

    def learn(self, message: Vocabulary) -> None:
        """Take the bytes of every id, which grammars need. Raises InvalidRequest the second time."""
        self._grammars.learn(message)

    def generate(self, message: Generate) -> None:
        """Queue a request. Raises InvalidRequest or PromptTooLong, and then nothing is queued."""
        if self.config.is_encoder:
            raise InvalidRequest(f"a {self.config.architecture} model embeds text and generates none")
        self._check_new(message.request_id)
        self._check_ids(message.ids)
        sequence = Sequence.from_prompt(
            message.request_id,
            message.ids,
            max_tokens=message.max_tokens,
            stop_ids=frozenset(message.stop_ids),
            sampling=message.sampling,
            num_logprobs=message.num_logprobs,
            cache_salt=message.cache_salt,
            window_tokens=message.window_tokens,
            num_keep=message.num_keep,
            sampler_state=self._sampler.begin(message.sampling, message.num_logprobs),
            arrival_ns=time.monotonic_ns(),
        )
        self._scheduler.check_new(sequence)
        if message.grammar is not None:  # what is refused must not leave a matcher behind
            sequence.constraint = self._grammars.begin(message.grammar)
        self._compiling.append(sequence)
        self._add_compiled(0)
        self._request_ids.add(message.request_id)

    def embed(self, message: Embed) -> None:
        """Queue the sequences of an embedding request; all or none."""
        self._check_new(message.request_id)
        for ids in message.sequences:
            self._check_ids(ids)
        sequences = self._embedder.begin(message)
        try:
            for sequence in sequences:
                self._scheduler.add(sequence)
        except InvalidRequest:
            for sequence in sequences:
                self._scheduler.abort(sequence.request_id)
            self._scheduler.take_finished()
            self._embedder.forget(message.request_id)
            raise
        self._request_ids.add(message.request_id)

    def cancel(self, request_id: int) -> None:
        """Abort a request; nothing happens if it has ended or never was."""
        if request_id not in self._request_ids:
            return
        for sequence in [each for each in self._compiling if each.request_id == request_id]:
            self._compiling.remove(sequence)
            self._scheduler.add(sequence)
        for sequence_id in self._embedder.sequence_ids(request_id) or [request_id]:
            self._scheduler.abort(sequence_id)
        self._finish_ended(time.monotonic_ns())

    def stats(self) -> Stats:
        """Return the counters since load and the gauges of this moment."""
        scheduler, pages = self._scheduler, self._pages
        uses = self.model.expert_uses().values()
        return Stats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(self._compiling),
            steps=scheduler.num_steps,
            prefill_tokens=scheduler.prefill_tokens,
            decode_tokens=scheduler.decode_tokens,
            cached_tokens=scheduler.cached_tokens,
            pages_free=pages.num_free,
            pages_tree=pages.num_tree,
            pages_live=pages.num_live,
            pages_total=pages.num_pages,
            prefill_ns=self._prefill_ns,
            decode_ns=self._decode_ns,
            expert_uses=sum(int(layer[:-1].sum()) for layer in uses),
            **(
                {"expert_reads": sum(int(layer[-1]) for layer in uses)}
                if self._experts is None
                else self._experts.stats()
            ),
        )

    def step(self) -> None:
        """Compute one step of what is scheduled and send what came of it.

        On a card the step after it is launched before its results are awaited, where that can be done.
        """
        if self._compiling:
            self._add_compiled(0 if self._scheduler.has_work else COMPILER_S)
        running, self._ahead = self._ahead or self._launch(), None
        if running is None:
            return
        if running.can_run_ahead:
            self._ahead = self._launch_ahead()
        choices = running.wait()
        if self._experts is not None:
            self._experts.pool.check()
        for request_id, failure in choices.failures.items():
            self._failures[request_id] = failure
            self._scheduler.abort(request_id)
        emitted = self._scheduler.advance(running.batch, choices.ids)
        now_ns = time.monotonic_ns()
        for sequence, token in emitted:
            if sequence.first_token_ns == 0:
                sequence.first_token_ns = now_ns
            self._send(answers.tokens(sequence, token, choices.logprobs.get(sequence.request_id)))
        self._finish_ended(now_ns)
        started_ns = max(running.started_ns, self._last_end_ns)
        if running.has_prefill:
            self._prefill_ns += now_ns - started_ns
        else:
            self._decode_ns += now_ns - started_ns
            if self._experts is not None:
                self._experts.observe(len(running.batch.entries), now_ns - started_ns)
        self._last_end_ns = now_ns
        if self._debug_checks:
            self._scheduler.check()

    def _make_model(self, make_graph: Callable[..., Graph], precision: str) -> Model:
        """Return the model of the plan's sizes, recorded, with its pages and states."""
        plan = self.plan
        return Model(
            self.config,
            self.weights,
            self._placed.graph(make_graph),
            self.threads,
            num_pages=plan.num_pages,
            page_size=plan.page_size,
            max_pages_per_sequence=plan.max_pages_per_sequence,
            max_tokens=plan.max_step_tokens,
            max_sequences=plan.max_sequences,
            max_logits=plan.max_sequences,
            precision=precision,
            make_pages=self.device.arena(plan.kv_bytes + plan.state_bytes),
            num_state_slots=max(1, plan.num_state_slots),
        )

    def _launch(self) -> "_Running | None":
        """Schedule a step and begin it; the processor ends it too."""
        batch = self._scheduler.schedule()
        if batch is None:
            return None
        started_ns = time.monotonic_ns()
        has_prefill = False
        for entry in batch.entries:
            has_prefill = has_prefill or entry.start < entry.sequence.prompt_len
            if entry.sequence.admitted_ns == 0:
                entry.sequence.admitted_ns = started_ns
        self._prepare(batch)
        step = batch.fill(self._arrays)
        run_ns = time.monotonic_ns()
        self.model.run(*step)
        self.graph_ns += time.monotonic_ns() - run_ns
        self._embedder.collect(batch, self.model)
        chooser = self._device_chooser
        if chooser is not None and chooser.supports(batch):
            sequences = batch.sampled_sequences
            wait = chooser.launch(sequences, self.model.device_logits, 0)
            can_run_ahead = not any(depends_on_history(each) for each in sequences)
            return _Running(batch, wait, started_ns, has_prefill, can_run_ahead)
        return _Running(batch, lambda: self._host_chooser.choose(batch, self.model), started_ns, has_prefill)

    def _launch_ahead(self) -> "_Running | None":
        """Begin the step after the one in flight with the ids that the card chose."""
        chooser = self._device_chooser
        batch = self._scheduler.schedule_ahead()
        if batch is None or chooser is None:
            return None
        started_ns = time.monotonic_ns()
        self.model.run(*batch.fill(self._arrays), sampled=chooser.ids)
        wait = chooser.launch(batch.sampled_sequences, self.model.device_logits, 1)
        return _Running(batch, wait, started_ns, can_run_ahead=True)

    def _add_compiled(self, timeout_s: float) -> None:
        """Hand those to the scheduler whose grammars are ready, waiting for the first one."""
        for sequence in list(self._compiling):
            if sequence.constraint is None or sequence.constraint.wait(timeout_s):
                self._compiling.remove(sequence)
                self._scheduler.add(sequence)
            timeout_s = 0

    def _prepare(self, batch: Batch) -> None:
        """Compute the masks of constrained sequences; what fails here fails again where it is needed."""
        for sequence in batch.sampled_sequences:
            if sequence.constraint is not None:
                with contextlib.suppress(InvalidOption):
                    sequence.constraint.prepare()

    def _finish_ended(self, now_ns: int) -> None:
        for sequence in self._scheduler.take_finished():
            sequence.finished_ns = now_ns
            finished = answers.finished(sequence)
            if sequence.is_embedding:
                ended = self._embedder.finish(sequence, finished)
                if ended is not None:
                    self._request_ids.discard(ended)
                continue
            self._request_ids.discard(sequence.request_id)
            if sequence.constraint is not None:
                sequence.constraint.close()
            failure = self._failures.pop(sequence.request_id, None)
            self._send(finished if failure is None else answers.failed(failure, sequence.request_id))

    def _check_new(self, request_id: int) -> None:
        if request_id < 0 or request_id in self._request_ids:
            raise InvalidRequest(f"request id is negative or in use: {request_id}")

    def _check_ids(self, ids: list[int]) -> None:
        if ids and not (min(ids) >= 0 and max(ids) < self.config.vocab_size):
            wrong = next(token for token in ids if not 0 <= token < self.config.vocab_size)
            raise InvalidRequest(f"token id must be between 0 and {self.config.vocab_size - 1}: {wrong}")

    def _ready(self, precision: str) -> None:
        used_bytes = 0 if self.device.used_bytes is None else self.device.used_bytes()
        self._memory = report.found(
            self._memory, used_bytes, [] if self._experts is None else self._experts.notes()
        )
        message = Ready(
            context_tokens=self.plan.context_tokens,
            weight_bytes=self.weights.num_bytes,
            kv_bytes=self.model.sequence_bytes,
            workspace_bytes=self.model.workspace_bytes,
            num_threads=self.threads.num_threads,
            device=self.device.name,
            load_ns=self.load_ns,
            kernels=dispatch.describe("cpu" if self.device.name == "cpu" else "cuda"),
            device_bytes=report.total(self._memory) if self.device.name == "cuda" else 0,
            memory=self._memory,
        )
        report.loaded(
            message,
            architecture=self.config.architecture,
            precision=precision,
            device=self.device.label,
            sequences=self.plan.max_sequences,
            pages=self.plan.num_pages,
            gb_per_s=self.read_bytes / max(1, self.read_ns),
        )
        self._send(message)

"""One run of bench-experts: an engine with its policy and slots, and what is measured of it."""

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import cast

import msgspec
from experts_replay import Replay, Slots
from experts_report import Ceilings, wait

from ftd.engine import expert_plan
from ftd.engine.engine import Engine
from ftd.engine.locality import Locality
from ftd.engine.messages import Generate, Load, SamplingParams, Stats, Tokens, Up
from ftd.engine.synthetic import Synthetic, SyntheticWeights
from ftd.kernels.expert_slots import ExpertSlots

SAMPLED = SamplingParams(temperature=1.0, top_k=256, top_p=1.0, repeat_penalty=1.0)
GREEDY = SamplingParams(temperature=0.0, top_k=1, top_p=1.0, repeat_penalty=1.0)
GREEDY_PROMPT_TOKENS, GREEDY_LOGPROBS = 100, 20
# Seeds of texts: of those that are recorded, by their row, and of the one that fills the slots before them
RECORDED_SEED, WARM_SEED = 300, 200


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt, and the ids that follow it in every run."""

    prompt: list[int]
    ids: list[int]


class Run:
    """One loaded engine and what it sent. run: resident, or a policy with ``slots`` of all experts.

    ``slots`` says what part of them there is room for, 0 where all are there.
    """

    def __init__(
        self, source: Synthetic, locality: Locality, run: str, slots: float, its: argparse.Namespace
    ) -> None:
        self.locality, self.slots, self.run = locality, 0.0, run
        self.sent: list[Up] = []
        self._warm, self._decode, self._context = its.warm, its.decode, its.context
        window = max([*its.prompts, its.context, GREEDY_PROMPT_TOKENS, its.follow + 30])
        load = Load(
            config_path="",
            blob_paths={},
            context_tokens=window + self.num_recorded + its.greedy,
            max_sequences=max(its.batches),
            device=its.device,
            device_memory_bytes=0 if slots or run == "resident" else int(its.gpu_memory * 1e9),
            experts_policy="ftd" if run == "resident" else run,
            expert_slots=slots,
        )
        begin = time.monotonic()
        self.engine = Engine(load, self.sent.append, source=source)
        self.load_s = time.monotonic() - begin
        self.replay = Replay(self.engine)
        self.experts = self.engine._experts
        self._kept: Slots | None = None
        if self.experts is not None:
            self._auto = self.pool.state.quota.clone()
            self._share = None if self.pool.prompts is None else self.pool.prompts.share_of
            total = self.pool.config.num_layers * self.pool.config.num_experts
            self.slots = self.pool.config.num_slots / total
        self.next_id = 1

    @property
    def pool(self) -> ExpertSlots:
        """The pool of experts."""
        assert self.experts is not None
        pool: ExpertSlots = self.experts.pool
        return pool

    @property
    def num_recorded(self) -> int:
        """Ids of a recorded text: before all sequences decode, before they are timed, while they are."""
        return int(self._decode + 4 * self._warm)

    def split(self, text: str) -> None:
        """Say how many misses are fetched; nothing corrects it. Prompts stage all but with auto."""
        assert self.experts is not None
        self.experts._tuner = None
        share = expert_plan.share(text)
        self.pool.share_prompts(self._share if share is None else None)
        if share is None:
            self.pool.state.quota.copy_(self._auto)
            return
        self.pool.set_quota([round(share * misses) for misses in range(self.pool.config.num_experts + 1)])

    def start(
        self,
        ids: list[int],
        max_tokens: int,
        salt: str = "",
        sampling: SamplingParams = SAMPLED,
        num_logprobs: int = -1,
    ) -> int:
        """Queue a request; without ``salt`` it finds nothing of any other's prompt."""
        self.next_id += 1
        self.engine.generate(
            Generate(
                request_id=self.next_id,
                ids=ids,
                max_tokens=max_tokens,
                sampling=msgspec.structs.replace(sampling, seed=self.next_id),
                cache_salt=salt or f"request {self.next_id}",
                num_logprobs=num_logprobs,
            )
        )
        return self.next_id

    def until_first(self, request_id: int) -> None:
        """Step until a request has its first token."""
        while not any(isinstance(each, Tokens) and each.request_id == request_id for each in self.sent):
            self.engine.step()

    def tokens(self, request_id: int) -> list[int]:
        """Return the ids that a request got."""
        its = [each for each in self.sent if isinstance(each, Tokens) and each.request_id == request_id]
        return [token for each in its for token in each.ids]

    def finish(self) -> None:
        """Run until nothing is left."""
        while self.engine.has_work:
            self.engine.step()
        self.sent.clear()

    # ---- decode

    def record(self, count: int) -> list[Text]:
        """Sample ``count`` texts side by side, at temperature 1."""
        prompts = [self.locality.text(self._context, RECORDED_SEED + index) for index in range(count)]
        requests = [self.start(ids, self.num_recorded) for ids in prompts]
        while self.engine.has_work:
            self.engine.step()
        texts = [Text(ids, self.tokens(request)) for ids, request in zip(prompts, requests, strict=True)]
        self.sent.clear()
        return texts

    def fill_slots(self) -> None:
        """Decode a text that is no other's, and let every measurement begin with what is in slots then."""
        prompt = self.locality.text(self._context, WARM_SEED)
        ids = self.locality.text(self.num_recorded, WARM_SEED + 1, prompt[-1])
        self.begin([Text(prompt, ids)])
        self.finish()
        wait()
        self._kept = None if self.experts is None else Slots.of(self.pool)

    def begin(self, texts: list[Text]) -> list[int]:
        """Start to replay ``texts`` and step until all of them decode; return the requests."""
        requests = []
        for text in texts:
            request = self.start(text.prompt, len(text.ids))
            self.replay.force(request, text.ids)
            self.until_first(request)
            requests.append(request)
        return requests

    def decode(self, texts: list[Text], split: str, ceilings: Ceilings) -> dict[str, float]:
        """Measure steps of all of ``texts``, from the slots of ``fill_slots``; split: "" for all resident."""
        if self._kept is not None:
            self._kept.put_back()
        if split:
            self.split(split)
        requests, steps = self.begin(texts), self._decode
        for _ in range(self._warm):
            self.engine.step()
        wait()
        before, begin = self.engine.stats(), time.monotonic()
        for _ in range(steps):
            self.engine.step()
        wait()
        wall = time.monotonic() - begin
        after = self.engine.stats()
        for request, text in zip(requests, texts, strict=True):
            found = self.tokens(request)
            assert len(found) >= steps and found == text.ids[: len(found)], "another text was decoded"
            self.engine.cancel(request)
        self.finish()
        return self._found(len(texts), wall, before, after, ceilings)

    def _found(
        self, batch: int, wall: float, before: Stats, after: Stats, ceilings: Ceilings
    ) -> dict[str, float]:
        """Return what ``wall`` seconds of decoding say, between two messages of ``Stats``."""
        steps = self._decode
        reads, hits = (
            getattr(after, name) - getattr(before, name) for name in ("expert_reads", "expert_hits")
        )
        moved = after.expert_copied_bytes - before.expert_copied_bytes
        ran = after.expert_cpu_bytes - before.expert_cpu_bytes
        ideal = self.ideal_s(reads / steps, hits / steps, batch, self._context + steps // 2, ceilings)
        return {
            "tokens_per_s": batch * steps / wall,
            "missed": 1 - hits / max(1, reads) if self.experts is not None else 0.0,
            "moved": moved / steps / batch,
            "ran": ran / steps / batch,
            "roof": ideal * steps / wall,
        }

    def ideal_s(self, reads: float, hits: float, batch: int, context: int, ceilings: Ceilings) -> float:
        """Return the seconds of a step that only moves its bytes, at the measured rates."""
        sizes, config = cast(SyntheticWeights, self.engine.weights).sizes, self.engine.config
        dense = sum(size for name, size in sizes.items() if not name.startswith("experts"))
        dense -= 0 if config.tie_word_embeddings else sizes["model.embed_tokens.weight"]
        assert config.experts is not None
        bank = next(size for name, size in sizes.items() if name.startswith("experts"))
        record = bank / config.experts.num_experts
        dense += batch * context * config.kv_bytes_per_token(2)
        if self.experts is None:
            return (dense + reads * record) / ceilings.copy
        both = ceilings.fetch_beside + ceilings.cpu_beside
        return dense / ceilings.copy + max(hits * record / ceilings.copy, (reads - hits) * record / both)

    # ---- prompts

    def prompt(self, length: int, follow: int = 0, goes_on: bool = True) -> dict[str, float]:
        """Measure the time to the first token, median of three after one, and the bytes copied.

        follow: the prompt is cached and so many tokens come after it; they go on with its last topic or begin
        another one.
        """
        times, copied = [], 0
        for turn in range(4):
            ids, salt = self.locality.text(length, length * 100 + turn), f"prompt {self.next_id}"
            if follow:
                self.start(ids, 1, salt)
                self.finish()
                ids = ids + self.locality.text(follow, 200 + turn, ids[-1] if goes_on else None)
            before = self.engine.stats().expert_copied_bytes
            wait()
            begin = time.monotonic()
            self.until_first(self.start(ids, 1, salt))
            times.append(time.monotonic() - begin)
            self.finish()
            copied = self.engine.stats().expert_copied_bytes - before
        first = statistics.median(times[1:])
        rate = 0.0 if follow else length / first
        return {"tokens_per_s": rate, "first_token_ms": first * 1e3, "moved": copied}

    def greedy(self, count: int) -> tuple[list[int], dict[int, float]]:
        """Return ``count`` greedy tokens and the best log probabilities of the first."""
        prompt = self.locality.text(GREEDY_PROMPT_TOKENS, 1)
        request = self.start(prompt, count, sampling=GREEDY, num_logprobs=GREEDY_LOGPROBS)
        while self.engine.has_work:
            self.engine.step()
        ids = self.tokens(request)
        first = next(
            each for each in self.sent if isinstance(each, Tokens) and each.request_id == request
        ).logprobs
        assert first is not None
        self.sent.clear()
        return ids, dict(first[0].top)

"""Weights that make a random model route like a trained one: tokens of a topic follow each other and choose
similar experts, so that caches of experts meet the locality that they are made for.

    embedding [V, D]   row v = size · (sqrt(share) · u[topic(v)] + sqrt(1 - share) · noise[v])
    router    [E, D]   random, anew in each layer: experts of a token follow from its row
    head      [V, D]   row w = c · (u[topic(w)] + small · the topics that topic(w) follows) + noise

Embeddings are large, so that the residual stream stays near them in all layers and every router sees them.
Ids below topics · tokens take part; the others repeat their embeddings and are never sampled.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# Logits: a topic's own tokens stand so far above what no topic leads to
_TOP_LOGIT = 24.0
_HEAD_NOISE = 0.4
_ROUTER_LOGIT = 2.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Locality:
    """How local routing is: by default LRU misses about 16 % at slots for 37 % of the experts, 39 % at 11 %.

    topics, tokens   T topics of n tokens each
    share            of a token's embedding, in energy, that is its topic's
    stay             probability that the next token is of the same topic
    successors       topics that may follow a topic beside itself
    size             root mean square of an embedding; layers add about 10 to it
    """

    topics: int = 128
    tokens: int = 64
    share: float = 0.78
    stay: float = 0.93
    successors: int = 3
    size: float = 32.0
    seed: int = 7

    @property
    def num_ids(self) -> int:
        """Ids that take part."""
        return self.topics * self.tokens

    def following(self) -> NDArray[np.int64]:
        """Return the topics that may follow each topic, [T, successors]."""
        rng = np.random.default_rng(self.seed)
        shifts = rng.choice(np.arange(1, self.topics), self.successors, replace=False)
        order = rng.permutation(self.topics)
        place = np.argsort(order)
        found: NDArray[np.int64] = order[(place[:, None] + shifts) % self.topics]
        return found

    def _directions(self, width: int) -> Floats:
        """Return orthonormal rows, one a topic."""
        rng = np.random.default_rng(self.seed + 1)
        if width < self.topics:
            rows = rng.standard_normal((self.topics, width))
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        else:
            rows = np.linalg.qr(rng.standard_normal((width, self.topics)))[0].T
        found: Floats = rows.astype(np.float32)
        return found

    def embedding(self, width: int) -> Floats:
        """Return rows of the ids that take part, [num_ids, width]."""
        rng = np.random.default_rng(self.seed + 2)
        noise = rng.standard_normal((self.num_ids, width), np.float32) * np.float32(
            np.sqrt((1 - self.share) / width)
        )
        topic = np.repeat(self._directions(width), self.tokens, axis=0)
        return (noise + np.float32(np.sqrt(self.share)) * topic) * np.float32(self.size * np.sqrt(width))

    def head(self, width: int) -> Floats:
        """Return rows of the output head, [num_ids, width], for hidden states of root mean square 1."""
        rng = np.random.default_rng(self.seed + 3)
        ratio = self.stay * self.successors / max(1 - self.stay, 1e-9)
        lower = (_TOP_LOGIT - np.log(max(ratio, 1.0))) / _TOP_LOGIT
        directions = self._directions(width)
        rows = directions.copy()
        for topic, following in enumerate(self.following()):
            rows[following] += np.float32(lower) * directions[topic]
        rows *= np.float32(_TOP_LOGIT / np.sqrt(self.share * width))
        noise = rng.standard_normal((self.num_ids, width), np.float32) * np.float32(
            _HEAD_NOISE / np.sqrt(width)
        )
        return np.repeat(rows, self.tokens, axis=0) + noise

    def router(self, layer: int, num_experts: int, width: int) -> Floats:
        """Return a layer's router, [E, width]."""
        rng = np.random.default_rng([self.seed, layer])
        return rng.standard_normal((num_experts, width), np.float32) * np.float32(
            _ROUTER_LOGIT / np.sqrt(width)
        )

    def routes(self, ids: list[int], layers: int, experts: int, chosen: int, width: int) -> NDArray[np.int64]:
        """Return the experts of each id by its embedding alone, [L, T, K], in no order."""
        hidden = self.embedding(width)[np.array(ids) % self.num_ids] / np.float32(self.size)
        found = np.empty((layers, len(ids), chosen), np.int64)
        for layer in range(layers):
            logits = hidden @ self.router(layer, experts, width).T
            found[layer] = np.argpartition(-logits, chosen, axis=1)[:, :chosen]
        return found

    def text(self, length: int, seed: int, after: int | None = None) -> list[int]:
        """Return ids as the model itself would write them; after: the id before them."""
        rng = np.random.default_rng([self.seed, seed])
        following = self.following()
        topic, ids = int(rng.integers(self.topics)), []
        if after is not None:
            topic = after % self.num_ids // self.tokens
        for _ in range(length):
            if rng.random() > self.stay:
                topic = int(following[topic, rng.integers(self.successors)])
            ids.append(topic * self.tokens + int(rng.integers(self.tokens)))
        return ids

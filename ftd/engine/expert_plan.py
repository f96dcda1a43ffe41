"""How many experts of a model lie on the card: integers only.

Dense weights, KV, states and workspace come first; slots get what is left. Where all experts fit, all are
resident and nothing is looked up.
"""

import msgspec

from ftd.choices import EXPERTS_POLICIES
from ftd.engine import expert_cache
from ftd.errors import InvalidOption, OutOfMemory
from ftd.units import format_bytes


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What is done with experts that a card does not hold.

    residency: which stay in slots. is_paper: FreeToken as described, the baseline: misses are split by the
    rates of copying and of reading, not as measured, and prompts copy whole layers, not what is missing.
    overlaps: copies run beside what computes. looks_ahead: decode copies what the next layer is expected to
    miss.
    """

    residency: expert_cache.Policy
    is_paper: bool = False
    overlaps: bool = True
    looks_ahead: bool = False


_FTD, _LRU, _PAPER = EXPERTS_POLICIES
POLICIES = {
    _FTD: Policy(residency="decayed", looks_ahead=True),
    _LRU: Policy(residency="lru"),
    _PAPER: Policy(residency="lru", is_paper=True),
    # to measure what looking ahead and overlapping are worth; no setting names them
    "demand": Policy(residency="decayed"),
    "serial": Policy(residency="lru", is_paper=True, overlaps=False),
}


class ExpertNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's experts take: L layers with E experts each, records of S bytes.

    staged_layers: whole layers that prompts stage on a card, 2 or, where memory is short, 1.
    """

    num_layers: int
    num_experts: int
    record_bytes: int
    staged_layers: int = 2

    @property
    def staged_bytes(self) -> int:
        """Bytes of the layers that are staged."""
        return self.staged_layers * self.num_experts * self.record_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of all records."""
        return self.num_layers * self.num_experts * self.record_bytes


def share(text: str) -> float | None:
    """Return which part of missing experts is fetched and not run on the processor; None: it is measured.

    text: auto, fill (all), cpu (none) or split=F. Raises InvalidOption for anything else.
    """
    known = {"auto": None, "fill": 1.0, "cpu": 0.0}
    if text in known:
        return known[text]
    prefix, _, number = text.partition("=")
    try:
        found = float(number) if prefix == "split" else -1.0
    except ValueError:
        found = -1.0
    if not 0.0 <= found <= 1.0:
        raise InvalidOption(f"experts must be auto, fill, cpu or split=F with F from 0 to 1: {text!r:.50}")
    return found


def policy(name: str) -> Policy:
    """Return the policy of that name in POLICIES; raises InvalidOption."""
    if name not in POLICIES:
        raise InvalidOption(f"policy of experts must be {', '.join(POLICIES)}: {name!r:.50}")
    return POLICIES[name]


def paper_quota(copy_rate: float, read_rate: float, max_misses: int) -> list[int]:
    """Return how many of m = 0 … ``max_misses`` are fetched, by the rates: m · copy / read, at least one."""
    part = min(copy_rate / read_rate, 1.0)
    return [min(misses, max(1, round(misses * part))) for misses in range(max_misses + 1)]


def all_fit(needs: ExpertNeeds, free_bytes: int, part: float = 0.0) -> bool:
    """Return whether ``free_bytes`` hold all experts, and no ``part`` of them is asked for.

    Raises InvalidOption for a part that is none.
    """
    if not 0.0 <= part <= 1.0:
        raise InvalidOption(f"expert_slots is a part of all experts, from 0 to 1: {part}")
    return not part and needs.num_bytes <= free_bytes


def num_slots(needs: ExpertNeeds, free_bytes: int, part: float = 0.0) -> int:
    """Return how many slots ``free_bytes`` hold beside those that are staged, no more than there are experts.

    part: of all experts, at most so many; 0: as many as fit. Raises OutOfMemory if the layers do not fit
    that a prefill stages.
    """
    staged = needs.staged_layers * needs.num_experts
    places = max(free_bytes, 0) // needs.record_bytes
    if places < staged:
        layers = "two layers of them need" if needs.staged_layers > 1 else "a layer of them needs"
        wanted, free = format_bytes(needs.staged_bytes), format_bytes(max(free_bytes, 0))
        raise OutOfMemory(
            f"not enough device memory for experts: {layers} {wanted}, {free} is left",
            "raise FTD_GPU_MEMORY, lower num_ctx or FTD_NUM_PARALLEL, or set FTD_DEVICE=cpu",
        )
    most = int((part or 1.0) * needs.num_layers * needs.num_experts)
    return min(places - staged, most)

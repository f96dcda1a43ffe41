"""How many experts of a model lie on the card: integers only.

Dense weights, KV, states and workspace come first; slots get what is left. Where all experts fit, all are
resident and nothing is looked up.
"""

from dataclasses import dataclass

from ftd.errors import InvalidOption, OutOfMemory
from ftd.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertNeeds:
    """What a model's experts take: L layers with E experts each, records of S bytes."""

    num_layers: int
    num_experts: int
    record_bytes: int

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


def num_slots(needs: ExpertNeeds, free_bytes: int) -> int | None:
    """Return how many slots ``free_bytes`` hold beside those that are staged; None where all experts fit.

    Raises OutOfMemory if two layers do not fit, which a prefill stages.
    """
    if needs.num_bytes <= free_bytes:
        return None
    staged = 2 * needs.num_experts
    places = max(free_bytes, 0) // needs.record_bytes
    if places < staged:
        wanted, free = format_bytes(staged * needs.record_bytes), format_bytes(max(free_bytes, 0))
        raise OutOfMemory(
            f"not enough device memory for experts: two layers of them need {wanted}, {free} is left",
            "raise FTD_GPU_MEMORY, lower num_ctx or FTD_NUM_PARALLEL, or set FTD_DEVICE=cpu",
        )
    return places - staged

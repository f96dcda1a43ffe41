"""Words that settings choose among. ``ftd.engine.expert_plan`` says what the policies of experts mean."""

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("fast", "f32")
ISA_LEVELS = ("scalar", "avx2", "avx512", "amx")  # lowest first
KERNELS = ("reference", "cython", "triton")
EXPERTS_POLICIES = ("ftd", "lru", "paper")


def listed(words: tuple[str, ...]) -> str:
    """Return words as a sentence lists them: ``auto, cpu or cuda``."""
    return " or ".join((", ".join(words[:-1]), words[-1]))

"""Recorder: what is recorded runs in its order, buffers hold the last step's rows, and misuse is refused."""

from typing import Any

import numpy as np
import pytest

from ftd.kernels.reference_recorder import Buffer, Recorder
from ftd.kernels.step import Step

LIMITS: dict[str, Any] = {
    "max_tokens": 5,
    "max_sequences": 2,
    "max_logits": 3,
    "page_size": 4,
    "max_pages_per_sequence": 2,
}


def arrays(tokens: int, logits: int, **changed: Any) -> dict[str, Any]:
    """The arrays of a step of one sequence that has no earlier tokens."""
    values = {
        "ids": range(tokens),
        "positions": range(tokens),
        "kv_index": range(tokens),
        "q_start": [0, tokens],
        "kv_len": [tokens],
        "page_table": [[0, 1]],
        "logit_rows": range(logits),
    }
    return {name: np.array(each, np.int32) for name, each in (values | changed).items()}


def test_ops_run_in_their_order_over_rows_of_the_step_alone() -> None:
    recorder, ran = Recorder(None, **LIMITS), []
    x, out = recorder.buffer(2), recorder.logit_buffer(1)

    def first(step: Step) -> None:
        ran.append("first")
        recorder._write(x, np.stack([step.ids, step.positions], axis=1).astype(np.float32) + 1)

    def second(step: Step) -> None:
        ran.append("second")
        recorder._write(out, recorder.view(x)[step.logit_rows].sum(axis=1, keepdims=True))

    recorder._record(first)
    recorder._record(second)
    recorder.finish()
    for tokens, logits in ((5, 3), (2, 0), (1, 1)):
        recorder.run(**arrays(tokens, logits))
        assert recorder.view(x).tolist() == [[t + 1, t + 1] for t in range(tokens)]
        assert recorder.view(out).tolist() == [[2 * t + 2] for t in range(logits)]
    assert ran == ["first", "second"] * 3
    # What the longest step left is still there, but not seen
    assert recorder.view(x).base is not None and recorder.view(x).base.shape == (5, 2)


def test_memory_is_taken_when_recording_ends() -> None:
    recorder = Recorder(None, **LIMITS)
    recorder.buffer(7)
    recorder.logit_buffer(11)
    assert recorder.num_bytes == 0
    recorder.finish()
    assert recorder.num_bytes == 4 * (5 * 7 + 3 * 11)


def test_nothing_is_recorded_after_the_end_and_nothing_runs_before() -> None:
    recorder = Recorder(None, **LIMITS)
    x = recorder.buffer(3)
    with pytest.raises(ValueError, match=r"finish\(\) must come before run"):
        recorder.run(**arrays(1, 1))
    with pytest.raises(ValueError, match=r"finish\(\) must come before view"):
        recorder.view(x)
    recorder.finish()
    for again in (
        recorder.finish,
        lambda: recorder.buffer(3),
        lambda: recorder.logit_buffer(3),
        lambda: recorder._record(lambda step: None),
    ):
        with pytest.raises(ValueError, match="the graph is finished"):
            again()


def test_an_op_never_runs_on_a_step_that_does_not_fit() -> None:
    recorder, ran = Recorder(None, **LIMITS), []
    recorder._record(ran.append)
    recorder._num_ids = 4
    recorder.finish()
    for changed, message in (
        ({"ids": [3, 4]}, "ids must lie in 0 to 3, got 4"),
        ({"kv_len": [9]}, "kv_len must lie in 0 to 8, got 9"),
        ({"logit_rows": [2]}, "logit_rows must lie in 0 to 1, got 2"),
        ({"positions": [0, 2]}, "position of token 1 must be below 2, got 2"),
    ):
        with pytest.raises(ValueError, match=message):
            recorder.run(**arrays(2, 1, **changed))
    with pytest.raises(ValueError, match="tokens of a step must lie in 1 to 5, got 6"):
        recorder.run(**arrays(6, 1))
    assert not ran


def test_buffers_of_others_and_of_other_kinds_are_refused() -> None:
    recorder = Recorder(None, **LIMITS)
    x = recorder.buffer(3)
    recorder._expect(x, 3, "tokens")
    with pytest.raises(ValueError, match="the buffer belongs to another graph"):
        recorder._expect(Buffer(3, "tokens"), 3, "tokens")
    with pytest.raises(ValueError, match=r"buffer must be \[logits, 3\], got \[tokens, 3\]"):
        recorder._expect(x, 3, "logits")
    with pytest.raises(ValueError, match=r"buffer must be \[tokens, 4\], got \[tokens, 3\]"):
        recorder._expect(x, 4, "tokens")
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        recorder.buffer(0)


@pytest.mark.parametrize("name", LIMITS)
def test_limits_are_at_least_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        Recorder(None, **LIMITS | {name: 0})


def test_a_precision_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="precision must be fast or f32, got 'f64'"):
        Recorder(None, **LIMITS, precision="f64")

"""Which engine serves which request: the same weights, a window that is large enough, no other wishes."""

from types import SimpleNamespace

import pytest

from ftd.daemon.load_spec import LoadSpec
from ftd.daemon.loaded import LoadedEngine
from ftd.engine.messages import Ready


def spec(weights="sha256:a", trained=8192, **wishes):
    """What a request needs of a model with these weights and this trained window."""
    config = SimpleNamespace(digest=weights)
    info = SimpleNamespace(manifest=SimpleNamespace(config=config), context_length=trained)
    return LoadSpec(info=info, **wishes)


def engine(asked=4096, window=4096, device="cpu", is_alive=True, **fields):
    """An engine that was asked for one window and has another."""
    ready = Ready(
        context_tokens=window,
        weight_bytes=1,
        kv_bytes=1,
        workspace_bytes=1,
        num_threads=2,
        device=device,
        load_ns=1,
        kernels={},
    )
    runner = SimpleNamespace(is_alive=is_alive, ready=ready)
    values = {"spec": spec(num_threads=2), "keep_alive_ns": 0, "max_sequences": 1} | fields
    return LoadedEngine(runner=runner, asked_tokens=asked, **values)


@pytest.mark.parametrize(
    ("wanted", "serves"),
    [
        (spec(), True),
        (spec(num_ctx=1), True),
        (spec(num_ctx=4096), True),
        (spec(num_ctx=4097), False),
        (spec(num_ctx=100_000, trained=4096), True),  # no window is larger than the trained one
        (spec(num_ctx=100_000, trained=4097), False),
        (spec(weights="sha256:b"), False),
        (spec(num_threads=2), True),
        (spec(num_threads=3), False),
        (spec(device="auto"), True),
        (spec(device="cpu"), True),
        (spec(device="cuda"), False),
    ],
)
def test_the_window_and_the_weights_must_fit(wanted, serves):
    assert engine().serves(wanted) is serves


def test_a_window_that_memory_made_smaller_is_not_asked_for_again():
    """Else each request for 8192 would load the model anew, and get 2048 each time."""
    assert engine(asked=8192, window=2048).serves(spec(num_ctx=8192))
    assert engine(asked=0, window=8192).serves(spec(num_ctx=8192))
    assert not engine(asked=8191, window=2048).serves(spec(num_ctx=8192))


@pytest.mark.parametrize("fields", [{"is_alive": False}, {"is_doomed": True}])
def test_who_is_about_to_end_serves_nobody_and_does_not_grow(fields):
    assert engine().serves(spec())
    assert not engine(**fields).serves(spec())
    assert not engine(**fields).can_grow_for(spec(num_ctx=8192))


def test_only_a_window_can_grow_and_only_on_the_processor():
    larger = spec(num_ctx=8192)
    assert engine().can_grow_for(larger)
    assert not engine(device="cuda").can_grow_for(larger)
    assert not engine().can_grow_for(spec(num_ctx=8192, weights="sha256:b"))
    assert not engine().can_grow_for(spec(num_ctx=8192, num_threads=4))


def test_two_engines_are_never_the_same():
    """They are found again in lists by who they are, not by what they hold."""
    assert engine() != engine()

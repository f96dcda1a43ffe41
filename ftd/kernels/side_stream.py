"""Launches that run beside what a card computes."""

import contextlib

import torch


def beside(stream: torch.cuda.Stream | None) -> contextlib.AbstractContextManager[object]:
    """Return a context of launches on ``stream``, behind what the current stream has; None: on that one."""
    if stream is None:
        return contextlib.nullcontext()
    stream.wait_stream(torch.cuda.current_stream())
    return torch.cuda.stream(stream)


def wait_for(event: torch.cuda.Event | None) -> None:
    """Let the current stream wait for ``event``, if there is one."""
    if event is not None:
        torch.cuda.current_stream().wait_event(event)

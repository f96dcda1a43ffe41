"""The messages that a request's sequence becomes on its way up."""

from ftd.engine.messages import Failed, Finished, TokenLogprob, Tokens
from ftd.engine.sequence import Sequence
from ftd.errors import FtdError


def tokens(sequence: Sequence, token: int, logprob: TokenLogprob | None) -> Tokens:
    """Return the message of one id."""
    return Tokens(
        request_id=sequence.request_id, ids=[token], logprobs=None if logprob is None else [logprob]
    )


def failed(exc: FtdError, request_id: int | None = None) -> Failed:
    """Return the message that carries ``exc`` to the daemon."""
    return Failed(kind=type(exc).__name__, message=exc.message, hint=exc.hint, request_id=request_id)


def finished(sequence: Sequence) -> Finished:
    """Return the message that ends a request; durations of phases it never reached are 0."""
    end_ns = sequence.finished_ns
    admitted_ns = sequence.admitted_ns or end_ns
    first_ns = sequence.first_token_ns or end_ns
    assert sequence.finish_reason is not None
    return Finished(
        request_id=sequence.request_id,
        reason=sequence.finish_reason,
        prompt_tokens=sequence.prompt_len,
        cached_tokens=sequence.cached_len,
        output_tokens=sequence.output_len,
        queue_ns=admitted_ns - sequence.arrival_ns,
        prefill_ns=first_ns - admitted_ns,
        decode_ns=end_ns - first_ns,
        shifted_tokens=sequence.num_shifted,
    )

"""Messages of a request against durations worked out by hand."""

from array import array

from ftd.engine import answers
from ftd.engine.messages import TokenLogprob
from ftd.engine.sequence import Sequence
from ftd.errors import PromptTooLong


def ended(**times: int) -> Sequence:
    sequence = Sequence(request_id=5, ids=array("i", [1, 2, 3]), prompt_len=2, arrival_ns=100)
    sequence.finish_reason = "stop"
    for name, value in times.items():
        setattr(sequence, name, value)
    return sequence


def test_the_three_phases_of_a_request_follow_each_other() -> None:
    message = answers.finished(ended(admitted_ns=130, first_token_ns=190, finished_ns=400))
    assert (message.queue_ns, message.prefill_ns, message.decode_ns) == (30, 60, 210)
    assert (message.prompt_tokens, message.output_tokens) == (2, 1)


def test_phases_that_a_request_never_reached_took_no_time() -> None:
    message = answers.finished(ended(finished_ns=400))
    assert (message.queue_ns, message.prefill_ns, message.decode_ns) == (300, 0, 0)


def test_a_token_brings_its_logprob_if_it_has_one() -> None:
    logprob = TokenLogprob(7, -0.5, [(7, -0.5)])
    assert answers.tokens(ended(), 7, logprob).logprobs == [logprob]
    assert answers.tokens(ended(), 7, None).logprobs is None


def test_a_failure_keeps_its_kind_and_hint() -> None:
    message = answers.failed(PromptTooLong("too long", "shorten it"), 5)
    assert (message.kind, message.message, message.hint) == ("PromptTooLong", "too long", "shorten it")
    assert message.request_id == 5

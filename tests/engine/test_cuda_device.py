"""What a card's parts are made of, on Triton's interpreter."""

from itertools import pairwise

import pytest
import torch

from ftd.engine import cuda_device, device, devices
from ftd.errors import OutOfMemory


def test_parts_of_an_arena_lie_apart_on_whole_lines_and_are_zero() -> None:
    make = devices.interpreter().arena(4096)
    shapes = [
        ((3, 5), "float32"),
        ((7,), "float32"),
        ((2, 2, 2), "float16"),
        ((1,), "int32"),
        ((64,), "uint8"),
    ]
    parts = [make(shape, dtype) for shape, dtype in shapes]
    spans = []
    for part, (shape, dtype) in zip(parts, shapes, strict=True):
        assert (tuple(part.shape), part.dtype) == (shape, getattr(torch, dtype))
        assert not part.float().any()
        begin = part.data_ptr()
        spans.append((begin, begin + part.numel() * part.element_size()))
        assert (begin - parts[0].data_ptr()) % 256 == 0
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert spans[-1][1] - spans[0][0] <= 4096


def test_what_an_arena_has_no_room_for_is_made_beside_it() -> None:
    make = devices.interpreter().arena(512)
    inside, beside, again = (make((size,), "uint8") for size in (200, 300, 256))
    assert beside.numel() == 300
    assert again.data_ptr() - inside.data_ptr() == 256
    assert not inside.data_ptr() <= beside.data_ptr() < inside.data_ptr() + 512


def test_pages_that_a_device_refuses_are_an_error_with_their_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*rest: object, **named: object) -> torch.Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "zeros", refuse)
    with pytest.raises(OutOfMemory, match=r"pages of shape \[3, 4\]") as caught:
        devices.interpreter().make_pages((3, 4), "float16")
    assert caught.value.hint == "lower num_ctx or FTD_NUM_PARALLEL"


def test_a_card_counts_what_it_took_before_as_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Free and total bytes as a driver tells them: at first, then after 3 GB were allocated."""
    told = [(70 << 30, 80 << 30)]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: told[0])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a card")
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    cuda_device._first_look.cache_clear()
    card = cuda_device.first()
    cuda_device._first_look.cache_clear()
    assert (card.name, card.label, card.chunk_tokens) == ("cuda", "a card", device.CUDA_CHUNK_TOKENS)
    # others have 10 GiB of it, so what this process took is what was measured, not what is missing
    assert card.context_bytes == cuda_device.card_memory.CONTEXT_BYTES
    told[0] = (67 << 30, 80 << 30)
    assert card.free_bytes() == (67 << 30) + card.context_bytes - cuda_device.RESERVE_BYTES
    assert card.used_bytes is not None and card.used_bytes() == (3 << 30) + card.context_bytes

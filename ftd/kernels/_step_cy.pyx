# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The arrays of one step, copied and checked before any op reads them; and aligned memory for programs.

The arrays are copied first and the copy is checked, so another thread cannot change an index after its check. The
checks are check_step's (step) in C; when one fails, check_step says which.
"""

import numpy as np

from ftd.kernels.step import Step as StepArrays, check_step

from libc.string cimport memcpy, memset


cdef object aligned(int64_t num_bytes):
    raw = np.zeros(num_bytes + 64, np.uint8)
    start = -address_of(raw) % 64
    return raw[start : start + num_bytes]


cdef uintptr_t address_of(object array) except 0:
    cdef const unsigned char[::1] data = array.reshape(-1).view(np.uint8)
    return <uintptr_t>&data[0]


cdef const float* floats_of(object array) except NULL:
    return <const float*>address_of(array)


cdef const int32_t* _place(int32_t** at, const int32_t* values, int64_t count) noexcept:
    """Copy values to at, move it past them and return where they lie."""
    cdef int32_t* start = at[0]
    memcpy(start, values, count * sizeof(int32_t))
    at[0] = start + count
    return start


cdef class StepMemory:
    """Owns the copies that a Step points to, for the largest step that ``limits`` allow."""

    def __init__(self, limits):
        self._limits = limits
        self._indices.resize(
            3 * limits.max_tokens
            + 3 * limits.max_sequences
            + 1
            + limits.max_sequences * limits.max_pages_per_sequence
            + limits.max_logits
        )
        memset(&self.step, 0, sizeof(Step))

    cdef int fill(self, tuple arrays, int64_t num_ids, int64_t num_pages, int64_t num_states) except -1:
        """Take the arrays of ReferenceGraph.run over; ValueError as check_step, and then the step is empty."""
        cdef bint sound = False
        ids, positions, kv_index, q_start, kv_len, page_table, logit_rows, state_index = arrays
        if num_states == 0:
            state_index = None
        try:
            sound = (
                self._copy(ids, positions, kv_index, q_start, kv_len, page_table, logit_rows, state_index) == 1
                and self._is_sound(num_ids, num_pages, num_states)
            )
        finally:
            if not sound:
                memset(&self.step, 0, sizeof(Step))
        if not sound:
            check_step(StepArrays(*arrays), self._limits, num_ids, num_pages, num_states)
            raise ValueError("the step's arrays changed while they were read")
        return 0

    cdef int _copy(
        self,
        const int32_t[::1] ids,
        const int32_t[::1] positions,
        const int32_t[::1] kv_index,
        const int32_t[::1] q_start,
        const int32_t[::1] kv_len,
        const int32_t[:, ::1] page_table,
        const int32_t[::1] logit_rows,
        const int32_t[::1] state_index,
    ) except -1:
        """Copy the arrays and fill the Step: 1, or 0 if a length does not fit."""
        cdef int64_t tokens = ids.shape[0], sequences = kv_len.shape[0], columns = page_table.shape[1]
        if not (
            1 <= tokens <= self._limits.max_tokens
            and 1 <= sequences <= self._limits.max_sequences
            and 1 <= columns <= self._limits.max_pages_per_sequence
            and logit_rows.shape[0] <= self._limits.max_logits
            and positions.shape[0] == tokens
            and kv_index.shape[0] == tokens
            and q_start.shape[0] == sequences + 1
            and page_table.shape[0] == sequences
            and (state_index is None or state_index.shape[0] == sequences)
        ):
            return 0
        cdef Step* step = &self.step
        cdef int32_t* at = self._indices.data()
        step.num_tokens = <int32_t>tokens
        step.num_sequences = <int32_t>sequences
        step.num_logits = <int32_t>logit_rows.shape[0]
        step.page_size = self._limits.page_size
        step.max_pages = <int32_t>columns
        step.ids = _place(&at, &ids[0], tokens)
        step.positions = _place(&at, &positions[0], tokens)
        step.kv_index = _place(&at, &kv_index[0], tokens)
        step.q_start = _place(&at, &q_start[0], sequences + 1)
        step.kv_len = _place(&at, &kv_len[0], sequences)
        step.page_table = _place(&at, &page_table[0, 0], sequences * columns)
        step.logit_rows = at
        if step.num_logits:
            _place(&at, &logit_rows[0], step.num_logits)
        step.state_index = NULL
        if state_index is not None:
            step.state_index = _place(&at, &state_index[0], sequences)
        return 1

    cdef bint _is_sound(self, int64_t num_ids, int64_t num_pages, int64_t num_states) noexcept:
        """Return whether every index of the copied step lies in range."""
        cdef Step* step = &self.step
        cdef int64_t i, b, c, used, places = num_pages * step.page_size
        cdef int64_t longest = <int64_t>step.max_pages * step.page_size
        if step.q_start[0] != 0 or step.q_start[step.num_sequences] != step.num_tokens:
            return False
        for i in range(step.num_tokens):
            if not (0 <= step.ids[i] < num_ids and 0 <= step.kv_index[i] < places):
                return False
        for i in range(step.num_logits):
            if not 0 <= step.logit_rows[i] < step.num_tokens:
                return False
        for b in range(step.num_sequences):
            # No q_start beyond the last: with the first and last right, rising means every one lies in range.
            if step.q_start[b] > step.q_start[b + 1] or not 0 <= step.kv_len[b] <= longest:
                return False
        for b in range(step.num_sequences):
            used = (step.kv_len[b] + step.page_size - 1) // step.page_size
            for i in range(used):
                if not 0 <= step.page_table[b * step.max_pages + i] < num_pages:
                    return False
            for i in range(step.q_start[b], step.q_start[b + 1]):
                if not 0 <= step.positions[i] < step.kv_len[b]:
                    return False
        if num_states == 0:
            return True
        if step.state_index == NULL:
            return False
        for b in range(step.num_sequences):
            if not 0 <= step.state_index[b] < num_states:
                return False
            for c in range(b):
                if step.state_index[b] == step.state_index[c]:
                    return False
        return True

# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""ExpertOps: how CpuGraph records the choice of experts and what they compute; see reference_experts."""

import numpy as np

from ftd.kernels.reference_experts import Routing
from ftd.kernels.route_topk_ref import check as check_router

from libc.stdint cimport int32_t, int64_t

from ftd.kernels._expert_ffn_cy cimport (
    NUM_EXPERT_OPS, ExpertFfnArgs, fill_expert_args, fill_expert_ops, place_expert_workspace,
)
from ftd.kernels._graph_states_cy cimport StateOps
from ftd.kernels._pool cimport Op
from ftd.kernels._route_topk_cy cimport RouteTopkArgs, route_topk_fn
from ftd.kernels._step_cy cimport address_of, aligned, floats_of


cdef class ExpertOps(StateOps):
    """The ops of mixtures of experts. Owns their routings and the workspace that they share."""

    def __init__(self, pool=None, **limits):
        super().__init__(pool, **limits)
        self._routed = {}

    def route_topk(
        self, logits, num_chosen, scoring="softmax", renormalise=True, scale=1.0, bias=None, num_groups=1,
        top_groups=1, group_top=2,
    ):
        """Record the choice of experts by a router's logits; return the handle that expert_ffn takes."""
        self._expect(logits, logits.width, "tokens")
        example = np.empty((0, logits.width), np.float32)
        check_router(example, num_chosen, scoring, bias, num_groups, top_groups, group_top)
        rows = self._limits.max_tokens
        ids, weights = np.zeros((rows, num_chosen), np.int32), np.zeros((rows, num_chosen), np.float32)
        routing = Routing(logits.width, num_chosen)
        self._routed[routing] = ids, weights, np.zeros(logits.width + 1, np.int64)
        work = np.zeros((self._parts, 2 * logits.width), np.float32)
        self._keep.append(work)
        cdef RouteTopkArgs* args = <RouteTopkArgs*>self._new(sizeof(RouteTopkArgs))
        args.logits = self._data(logits)
        if bias is not None:
            args.bias = floats_of(self._vector("bias", bias, logits.width))
        args.ids = <int32_t*>address_of(ids)
        args.weights = <float*>address_of(weights)
        args.work = <float*>address_of(work)
        args.num_experts = logits.width
        args.num_chosen = num_chosen
        args.sigmoid = scoring == "sigmoid"
        args.renormalise = renormalise
        args.num_groups, args.top_groups, args.group_top = num_groups, top_groups, group_top
        args.scale = scale
        self._record(route_topk_fn(), args)
        self._light(True)
        return routing

    def expert_ffn(self, out, x, routing, bank, activation="silu", limit=7.0) -> None:
        """Record out = the weighted sum of what the chosen experts make of x; see expert_ffn_ref."""
        if routing not in self._routed:
            raise ValueError("the routing belongs to another graph")
        if routing.num_experts != bank.num_experts:
            raise ValueError(f"the router has {routing.num_experts} experts, the bank {bank.num_experts}")
        cdef Op ops[8]
        cdef int i
        cdef ExpertFfnArgs* args = <ExpertFfnArgs*>self._new(sizeof(ExpertFfnArgs))
        fill_expert_args(args, bank, routing.num_chosen, activation, limit, self._fast)
        self._expect(x, args.width, "tokens")
        self._expect(out, args.width, "tokens")
        self._keep.append(bank)
        ids, weights, uses = self._routed[routing]
        args.x = self._data(x)
        args.out = self._data(out)
        args.ids = <const int32_t*>address_of(ids)
        args.weights = floats_of(weights)
        args.uses = <int64_t*>address_of(uses)
        self._expert_bytes = max(
            self._expert_bytes, place_expert_workspace(args, NULL, self._limits.max_tokens, self._parts)
        )
        self._experts.push_back(args)
        fill_expert_ops(args, ops)
        for i in range(NUM_EXPERT_OPS):
            self._record(ops[i].run, ops[i].args)
            if i == 3:  # activate, which gate_up does for one token
                self._needless()
            else:  # sort, gather, combine
                self._light(i == 0 or i == 1 and args.width <= 4096 or i == 5 and args.width * args.num_chosen <= 65536)

    def routed(self, routing):
        """Return ids and weights [T, K] of the last step, valid until the next run."""
        ids, weights, _ = self._routed[routing]
        return ids[: self._step.step.num_tokens], weights[: self._step.step.num_tokens]

    def expert_uses(self, routing):
        """Return [E + 1]: tokens that each expert served in all runs; last, how often one was read."""
        return self._routed[routing][2]

    def finish(self) -> None:
        """Allocate the memory that experts share; recording ends."""
        super().finish()
        cdef size_t i
        if self._experts.size() == 0:
            return
        workspace = aligned(self._expert_bytes)
        self._keep.append(workspace)
        for i in range(self._experts.size()):
            place_expert_workspace(
                self._experts[i], <char*>address_of(workspace), self._limits.max_tokens, self._parts
            )

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers and of what ops share."""
        return super().num_bytes + self._expert_bytes

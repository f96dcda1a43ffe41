"""expert_ffn on a GPU: the weights of each expert are read once a step, from the slot that ``slot_of`` names.

Two kernels do the work: gate, up and the activation give ``h`` [T*K, F], then down gives ``parts`` [T*K,
D]. Decode (up to 16 tokens) needs nothing else: programs find their tokens in ``ids``, and the last program
to finish a span of D adds the parts of each token; a single token has kernels of its own. Prefill first sorts
the pairs by expert and adds the parts in a kernel of its own. The order in which parts are added is fixed: no
result depends on which program came last, nor on other tokens.
"""

from typing import NamedTuple

import torch
import triton.language as tl

from ftd.kernels.device_matrix import DeviceBank, DeviceMatrix
from ftd.kernels.early_triton import early
from ftd.kernels.expert_ffn_ref import ALPHA, check_bank
from ftd.kernels.expert_groups_triton import group_pairs, num_blocks
from ftd.kernels.expert_products_triton import combine_kernel, down_kernel, gate_up_kernel
from ftd.kernels.expert_token_triton import down_token_kernel, gate_up_token_kernel
from ftd.kernels.expert_workspace import DECODE_TOKENS, Workspace
from ftd.kernels.matmul_ref import PRECISIONS
from ftd.kernels.row_product_triton import ROW_FORMATS
from ftd.kernels.shapes import ceil_div, expect, power_of_two
from ftd.kernels.weight_tile_triton import PLAIN_FORMATS


class Launch(NamedTuple):
    """How a kernel is launched: BN rows of the weight by BT tokens, BK columns at once, warps, stages."""

    bn: int
    bt: int
    bk: int
    warps: int
    stages: int


# By card, then by kernel, tokens and bits of a code: "token" is a single token, "one" the same where formats
# differ or need tensor cores, "few" up to 16.
LAUNCHES: dict[str, dict[tuple[str, str, int], Launch]] = {
    # Measured on an H200 with scripts/bench-gpu-experts --sweep, but for "token"
    "default": {
        ("gate_up", "token", 16): Launch(2, 1, 2048, 4, 1),
        ("gate_up", "token", 8): Launch(2, 1, 512, 1, 1),
        ("gate_up", "token", 4): Launch(2, 1, 512, 1, 1),
        ("down", "token", 16): Launch(4, 1, 256, 4, 1),
        ("down", "token", 8): Launch(1, 1, 256, 1, 1),
        ("down", "token", 4): Launch(4, 1, 256, 4, 1),
        ("gate_up", "one", 16): Launch(32, 16, 128, 2, 3),
        ("gate_up", "one", 8): Launch(32, 16, 256, 2, 3),
        ("gate_up", "one", 4): Launch(32, 16, 256, 2, 3),
        ("down", "one", 16): Launch(32, 16, 256, 4, 2),
        ("down", "one", 8): Launch(32, 16, 256, 2, 2),
        ("down", "one", 4): Launch(32, 16, 256, 2, 2),
        ("gate_up", "few", 16): Launch(32, 16, 128, 4, 5),
        ("gate_up", "few", 8): Launch(32, 16, 128, 4, 3),
        ("gate_up", "few", 4): Launch(64, 16, 256, 4, 3),
        ("down", "few", 16): Launch(64, 16, 128, 4, 2),
        ("down", "few", 8): Launch(64, 16, 256, 4, 2),
        ("down", "few", 4): Launch(64, 16, 256, 4, 2),
        ("gate_up", "many", 16): Launch(128, 128, 64, 8, 4),
        ("gate_up", "many", 8): Launch(64, 64, 64, 4, 3),
        ("gate_up", "many", 4): Launch(64, 64, 64, 4, 3),
        ("down", "many", 16): Launch(128, 128, 64, 8, 4),
        ("down", "many", 8): Launch(128, 64, 64, 4, 3),
        ("down", "many", 4): Launch(128, 64, 64, 4, 3),
    },
}
# Exact products of f32 run without tensor cores: small tiles.
EXACT_LAUNCH = Launch(32, 16, 32, 4, 2)
# Triton's interpreter takes as long for a large tile as for a small one.
INTERPRETED_LAUNCH = Launch(64, 16, 64, 4, 1)
INTERPRETED_TOKEN_LAUNCH = Launch(16, 1, 64, 4, 1)
COMBINE_COLUMNS = 1024


def _is_interpreted(tensor: torch.Tensor) -> bool:
    """Return whether kernels on ``tensor`` run in Triton's interpreter."""
    return tensor.device.type == "cpu"


class _Weight(NamedTuple):
    """A role's weight as kernels take it: planes, items between rows and between slots, facts of it."""

    planes: tuple[torch.Tensor, ...]
    strides: tuple[int, ...]
    slots: tuple[int, ...]
    format: str
    is_plain: bool
    has_tail: bool
    bits: int


def _weight(matrix: DeviceMatrix) -> _Weight:
    planes = list(matrix.planes)
    if matrix.format in ("q5_0", "q5_1", "q5_k"):
        # Four bytes hold bit 4 of one block; kernels read them as one number.
        planes[1] = planes[1].view(torch.int32)
    bits = {"f32": 16, "f16": 16, "bf16": 16, "q8_0": 8, "fp8_b128": 8}.get(matrix.format, 4)
    return _Weight(
        tuple(planes),
        tuple(plane.stride(1) for plane in planes),
        tuple(plane.stride(0) for plane in planes),
        matrix.format,
        matrix.format in PLAIN_FORMATS,
        matrix.format == "nvfp4" and matrix.shape[1] % 32 != 0,
        bits,
    )


class _Step(NamedTuple):
    """What both launches of one call share."""

    ids: torch.Tensor
    weights: torch.Tensor
    bank: DeviceBank
    workspace: Workspace
    is_exact: bool
    width: int
    inner: int
    x_bytes: int

    @property
    def num_pairs(self) -> int:
        return self.ids.numel()

    @property
    def is_grouped(self) -> bool:
        return self.ids.shape[0] > DECODE_TOKENS

    @property
    def item(self) -> torch.dtype:
        return torch.float32 if self.is_exact else torch.bfloat16

    @property
    def dtype(self) -> tl.dtype:
        """Of the operands."""
        return tl.float32 if self.is_exact else tl.bfloat16

    @property
    def early(self) -> dict[str, bool]:
        """Whether kernels start before their predecessor ends."""
        return {"EARLY": False} if self.is_grouped else early(self.ids)

    def is_token(self, *weights: _Weight) -> bool:
        """Return whether the kernels of a single token can read ``weights``, which are of one format."""
        return (
            self.ids.shape[0] == 1
            and not self.is_exact
            and all(each.format in ROW_FORMATS and not each.has_tail for each in weights)
            and len({each.format for each in weights}) == 1
        )

    def launch(self, kernel: str, *weights: _Weight) -> Launch:
        """Return how to launch ``kernel``.

        A step of fp8_b128's columns lies in one of its blocks; f32, of weights or of many tokens, has
        twice the bytes that the table means.
        """
        is_token = self.is_token(*weights)
        if _is_interpreted(self.ids):
            return INTERPRETED_TOKEN_LAUNCH if is_token else INTERPRETED_LAUNCH
        if self.is_exact:
            return EXACT_LAUNCH
        tokens = "one" if self.ids.shape[0] == 1 else "many" if self.is_grouped else "few"
        bits = min(each.bits for each in weights)
        launch = LAUNCHES["default"][kernel, "token" if is_token else tokens, bits]
        formats = {each.format for each in weights}
        if "f32" in formats or (kernel == "gate_up" and self.is_grouped and self.x_bytes == 4):
            return launch._replace(bk=launch.bk // 2)
        return launch._replace(bk=min(launch.bk, 128)) if "fp8_b128" in formats else launch

    def groups(self, block: int) -> tuple[int, dict[str, object]]:
        """Return the number of groups, and how kernels find the pairs of one."""
        chosen = self.ids.shape[1]
        experts = self.bank.num_experts
        by_expert = experts < self.num_pairs
        count = min(experts, self.num_pairs)
        if self.is_grouped:
            count = num_blocks(self.num_pairs, experts, block)
        return count, {
            "GROUPED": self.is_grouped,
            "BY_EXPERT": by_expert,
            "CHOICES": power_of_two(chosen),
            "EXPERTS": power_of_two(experts),
        }


def _bias(bank: DeviceBank, role: str, first: int = 0) -> tuple[torch.Tensor | None, int]:
    """Return a role's biases from ``first`` on and the items between two slots."""
    matrix = bank.matrices.get(f"{role}_bias")
    if matrix is None:
        return None, 0
    return matrix.planes[0][0, 0, first:], matrix.planes[0].stride(0)


def _run_gate_up(
    step: _Step, x: torch.Tensor, h: torch.Tensor, activation: str, limit: float, uses: torch.Tensor | None
) -> int:
    """Launch gate, up and activation; return the tokens of the blocks that pairs are grouped in."""
    bank = step.bank
    if "gate_up" in bank.matrices:
        gate = up = _weight(bank.matrices["gate_up"])
        first_up = step.inner
        gate_bias, up_bias = _bias(bank, "gate_up"), _bias(bank, "gate_up", step.inner)
    else:
        gate, up = _weight(bank.matrices["gate"]), _weight(bank.matrices["up"])
        first_up = 0
        gate_bias, up_bias = _bias(bank, "gate"), _bias(bank, "up")
    launch = step.launch("gate_up", gate, up)
    if step.is_token(gate, up):
        gate_up_token_kernel[(ceil_div(step.inner, launch.bn), step.num_pairs)](
            x, gate.planes, up.planes, gate_bias[0], up_bias[0], bank.slot_of, step.ids, uses, h,
            bank.num_experts, step.width, step.inner, limit,
            h.stride(0), gate.strides, gate.slots, up.slots, (gate_bias[1], up_bias[1]),
            FORMAT=gate.format, PLANES=len(gate.planes), STACKED=first_up > 0,
            CLAMPED=activation == "clamped", ALPHA=ALPHA, BIAS=gate_bias[0] is not None,
            USES=uses is not None, BN=launch.bn, BK=launch.bk, EVEN=step.width % launch.bk == 0,
            num_warps=launch.warps, **step.early,
        )  # fmt: skip
        return launch.bt
    groups = step.workspace.groups(step.num_pairs, bank.num_experts)
    if step.is_grouped:
        group_pairs(step.ids, groups, launch.bt, uses)
    num_groups, how = step.groups(launch.bt)
    gate_up_kernel[(ceil_div(step.inner, launch.bn), num_groups)](
        x, gate.planes, up.planes, gate_bias[0], up_bias[0],
        bank.slot_of, step.ids, groups.order, groups.starts, groups.ends, uses, h,
        step.ids.shape[0], step.ids.shape[1], bank.num_experts, step.width, step.inner, first_up, limit,
        x.stride(0), step.ids.stride(0), h.stride(0), gate.strides, up.strides, gate.slots, up.slots,
        (gate_bias[1], up_bias[1]),
        GATE=gate.format, GATE_PLAIN=gate.is_plain, GATE_PLANES=len(gate.planes), GATE_TAIL=gate.has_tail,
        UP_FORMAT=up.format, UP_PLAIN=up.is_plain, UP_PLANES=len(up.planes), UP_TAIL=up.has_tail,
        CLAMPED=activation == "clamped", ALPHA=ALPHA, BIAS=gate_bias[0] is not None,
        USES=uses is not None and not step.is_grouped,
        DTYPE=step.dtype, BN=launch.bn, BT=launch.bt, BK=launch.bk, EVEN=step.width % launch.bk == 0,
        num_warps=launch.warps, num_stages=launch.stages, **how, **step.early,
    )  # fmt: skip
    return launch.bt


def _run_down(
    step: _Step, h: torch.Tensor, out: torch.Tensor, add: bool, scale: float, block_tokens: int
) -> None:
    bank = step.bank
    down = _weight(bank.matrices["down"])
    bias, bias_slot = _bias(bank, "down")
    launch = step.launch("down", down)
    if step.is_grouped:
        launch = launch._replace(bt=block_tokens)
    chosen = step.ids.shape[1]
    if step.is_token(down):
        down_token_kernel[(ceil_div(step.width, launch.bn),)](
            h, down.planes, bias, bank.slot_of, step.ids, step.weights, out,
            chosen, step.width, step.inner, float(scale), h.stride(0), down.strides, down.slots, bias_slot,
            FORMAT=down.format, PLANES=len(down.planes), CHOICES=power_of_two(chosen),
            BIAS=bias is not None, ADD=add,
            BN=launch.bn, BK=launch.bk, EVEN=step.inner % launch.bk == 0,
            num_warps=launch.warps, **step.early,
        )  # fmt: skip
        return
    dtype = torch.float32 if step.is_exact or not step.is_grouped else torch.bfloat16
    parts = step.workspace.rows(step.workspace.parts, step.num_pairs, step.width, dtype)
    groups = step.workspace.groups(step.num_pairs, bank.num_experts)
    num_groups, how = step.groups(launch.bt)
    down_kernel[(ceil_div(step.width, launch.bn), num_groups)](
        h, down.planes, bias, bank.slot_of, step.ids, step.weights,
        groups.order, groups.starts, groups.ends, parts, step.workspace.arrivals(bank.num_experts), out,
        step.ids.shape[0], chosen, bank.num_experts, step.width, step.inner, float(scale),
        h.stride(0), step.ids.stride(0), step.weights.stride(0), out.stride(0),
        down.strides, down.slots, bias_slot,
        FORMAT=down.format, PLAIN=down.is_plain, PLANES=len(down.planes), TAIL=down.has_tail,
        CHOSEN=chosen, BIAS=bias is not None, ADD=add,
        DTYPE=step.dtype, BN=launch.bn, BT=launch.bt, BK=launch.bk, EVEN=step.inner % launch.bk == 0,
        num_warps=launch.warps, num_stages=launch.stages, **how, **step.early,
    )  # fmt: skip
    if step.is_grouped:
        combine_kernel[(step.ids.shape[0], ceil_div(step.width, COMBINE_COLUMNS))](
            parts, step.ids, step.weights, out, chosen, step.width, float(scale),
            step.ids.stride(0), step.weights.stride(0), out.stride(0),
            CHOSEN=chosen, ADD=add, BLOCK=COMBINE_COLUMNS,
        )  # fmt: skip


def expert_ffn_into(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    bank: DeviceBank,
    activation: str = "silu",
    limit: float = 7.0,
    precision: str = "fast",
    *,
    out: torch.Tensor,
    workspace: Workspace,
    add: bool = False,
    add_scale: float = 1.0,
    uses: torch.Tensor | None = None,
) -> torch.Tensor:
    """Write the weighted sum of what each token's experts make of it to ``out``, or add it; return ``out``.

    x, out   [T, D] f32 or bf16   out = add_scale * sum, or with ``add`` out += add_scale * sum
    ids      [T, K] i32           distinct in a row; a row of negative ones is padding: its sum is 0
    uses     [E + 1] i64          adds how many tokens each expert served; last, how many experts were read

    precision "fast": bf16 operands, f32 sums. "f32": exact weights, f32 operands. Safe under graph capture.
    ids must lie below E, and the slots of their experts must be >= 0.
    """
    width, inner = check_bank(bank, activation)  # type: ignore[arg-type]  # looks at formats and shapes only
    tokens, chosen = ids.shape
    expect("x", x, "float32 bfloat16", (tokens, width))
    expect("ids", ids, "int32", ("T", "K"))
    expect("weights", weights, "float32", (tokens, chosen))
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {' '.join(PRECISIONS)}, got {precision}")
    expect("out", out, "float32 bfloat16", (tokens, width))
    experts, is_exact = bank.num_experts, precision == "f32"
    if uses is not None:
        expect("uses", uses, "int64", (experts + 1,))
    workspace.expect(tokens * chosen, experts, width, inner, is_exact)
    if tokens == 0:
        return out
    step = _Step(ids, weights, bank, workspace, is_exact, width, inner, x.element_size())
    h = workspace.rows(workspace.inner, step.num_pairs, inner, step.item)
    block_tokens = _run_gate_up(step, x, h, activation, float(limit), uses)
    _run_down(step, h, out, add, add_scale, block_tokens)
    return out


def expert_ffn(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    bank: DeviceBank,
    activation: str = "silu",
    limit: float = 7.0,
    precision: str = "fast",
    pool: object = None,
) -> torch.Tensor:
    """Return the weighted sum of what each token's experts make of it, of x's type; see expert_ffn_ref."""
    width, inner = check_bank(bank, activation)  # type: ignore[arg-type]  # looks at formats and shapes only
    expect("ids", ids, "int32", ("T", "K"))
    tokens, chosen = ids.shape
    workspace = Workspace.make(tokens, chosen, bank.num_experts, width, inner, precision, x.device)
    out = torch.empty_like(x)
    return expert_ffn_into(x, ids, weights, bank, activation, limit, precision, out=out, workspace=workspace)

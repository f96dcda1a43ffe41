// The SPMD functions of sigmoid_gate and their choice by instruction set; only _sigmoid_gate_cy includes this.
#pragma once
#include "sigmoid_gate.h"

#define FTD_BODY "sigmoid_gate.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn sigmoid_gate_select(int32_t isa) { return FTD_SELECT(isa, sigmoid_gate_op); }

}  // namespace ftd

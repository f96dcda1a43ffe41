// The SPMD functions of gated_delta and their choice by instruction set; only _gated_delta_cy includes this.
#pragma once
#include "gated_delta.h"

#define FTD_BODY "gated_delta.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn gated_delta_select(int32_t isa) { return FTD_SELECT(isa, gated_delta_op); }

}  // namespace ftd

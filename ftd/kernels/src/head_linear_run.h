// The SPMD functions of head_linear and their choice by instruction set; only _head_linear_cy includes this.
#pragma once
#include "dequantize_row.h"
#include "head_linear.h"

#define FTD_BODY "head_linear.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn head_linear_select(int32_t isa) { return FTD_SELECT(isa, head_linear_op); }

}  // namespace ftd

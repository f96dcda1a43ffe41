// The SPMD functions of quantize_k and their choice by instruction set; only _quantize_k_cy includes this.
#pragma once
#include "quantize_k.h"

#define FTD_BODY "quantize_k.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn quantize_k_select(int32_t isa) { return FTD_SELECT(isa, quantize_k_op); }

}  // namespace ftd

// The SPMD functions of causal_conv and their choice by instruction set; only _causal_conv_cy includes this.
#pragma once
#include "causal_conv.h"

#define FTD_BODY "causal_conv.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn causal_conv_select(int32_t isa) { return FTD_SELECT(isa, causal_conv_op); }

}  // namespace ftd

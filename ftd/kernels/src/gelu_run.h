// The SPMD functions of gelu and their choice by instruction set; only _gelu_cy includes this.
#pragma once
#include "gelu.h"

#define FTD_BODY "gelu.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn gelu_select(int32_t isa) { return FTD_SELECT(isa, gelu_op); }

}  // namespace ftd

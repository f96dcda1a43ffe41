// The SPMD functions of swiglu and their choice by instruction set; only _swiglu_cy includes this.
#pragma once
#include "swiglu.h"

#define FTD_BODY "swiglu.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn swiglu_select(int32_t isa) { return FTD_SELECT(isa, swiglu_op); }

}  // namespace ftd

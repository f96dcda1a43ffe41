// The SPMD functions of rms_norm and their choice by instruction set; only _rms_norm_cy includes this.
#pragma once
#include "rms_norm.h"

#define FTD_BODY "rms_norm.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn rms_norm_select(int32_t isa) { return FTD_SELECT(isa, rms_norm_op); }

}  // namespace ftd

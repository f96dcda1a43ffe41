// The SPMD functions of layer_norm and their choice by instruction set; only _layer_norm_cy includes this.
#pragma once
#include "layer_norm.h"

#define FTD_BODY "layer_norm.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn layer_norm_select(int32_t isa) { return FTD_SELECT(isa, layer_norm_op); }

}  // namespace ftd

// The SPMD functions of add and their choice by instruction set; only _add_cy includes this.
#pragma once
#include "add.h"

#define FTD_BODY "add.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn add_select(int32_t isa) { return FTD_SELECT(isa, add_op); }

}  // namespace ftd

// The SPMD functions of rope and their choice by instruction set; only _rope_cy includes this.
#pragma once
#include "rope.h"

#define FTD_BODY "rope.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn rope_select(int32_t isa) { return FTD_SELECT(isa, rope_op); }
inline OpFn rope_table_select(int32_t isa) { return FTD_SELECT(isa, rope_table_op); }

}  // namespace ftd

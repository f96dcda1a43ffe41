// The SPMD functions of index_select and their choice by instruction set; only _index_select_cy includes this.
#pragma once
#include <algorithm>
#include <functional>

#include "index_select.h"

#define FTD_BODY "index_select.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn index_select_select(int32_t isa) { return FTD_SELECT(isa, index_select_op); }

}  // namespace ftd

// The SPMD functions of kv_store and their choice by instruction set; only _kv_store_cy includes this.
#pragma once
#include "kv_store.h"

#define FTD_BODY "kv_store.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn kv_store_select(int32_t isa) { return FTD_SELECT(isa, kv_store_op); }

}  // namespace ftd

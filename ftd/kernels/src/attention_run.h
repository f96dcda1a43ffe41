// The SPMD functions of attention and their choice by instruction set; only _attention_cy includes this.
#pragma once
#include <atomic>

#include "attention.h"

#define FTD_BODY "attention.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn attention_select(int32_t isa) { return FTD_SELECT(isa, attention_op); }

}  // namespace ftd

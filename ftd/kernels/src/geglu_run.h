// The SPMD functions of geglu and their choice by instruction set; only _geglu_cy includes this.
#pragma once
#include "geglu.h"

#define FTD_BODY "geglu.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn geglu_select(int32_t isa) { return FTD_SELECT(isa, geglu_op); }

}  // namespace ftd

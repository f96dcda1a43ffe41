// The SPMD functions of select_logit_rows and their choice by instruction set; only _select_logit_rows_cy includes this.
#pragma once
#include "select_logit_rows.h"

#define FTD_BODY "select_logit_rows.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn select_logit_rows_select(int32_t isa) { return FTD_SELECT(isa, select_logit_rows_op); }

}  // namespace ftd

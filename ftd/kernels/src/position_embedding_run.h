// The SPMD functions of position_embedding and their choice by instruction set; only _position_embedding_cy includes this.
#pragma once
#include "position_embedding.h"

#define FTD_BODY "position_embedding.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn position_embedding_select(int32_t isa) { return FTD_SELECT(isa, position_embedding_op); }

}  // namespace ftd

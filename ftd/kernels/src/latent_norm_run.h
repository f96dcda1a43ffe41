// The SPMD functions of latent_norm and their choice by instruction set; only _latent_norm_cy includes this.
#pragma once
#include "latent_norm.h"

#define FTD_BODY "latent_norm.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn latent_norm_select(int32_t isa) { return FTD_SELECT(isa, latent_norm_op); }

}  // namespace ftd

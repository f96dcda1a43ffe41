// The SPMD functions of latent_attention and their choice by instruction set; only _latent_attention_cy includes this.
#pragma once
#include "latent_attention.h"

#define FTD_BODY "latent_attention.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn latent_attention_select(int32_t isa) { return FTD_SELECT(isa, latent_attention_op); }

}  // namespace ftd

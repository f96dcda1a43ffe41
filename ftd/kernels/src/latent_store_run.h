// The SPMD functions of latent_store and their choice by instruction set; only _latent_store_cy includes this.
#pragma once
#include "latent_store.h"

#define FTD_BODY "latent_store.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn latent_store_select(int32_t isa) { return FTD_SELECT(isa, latent_store_op); }

}  // namespace ftd

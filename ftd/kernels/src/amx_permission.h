// Permission to use AMX: Linux keeps the tiles' registers away from a process until it asks for them.
#pragma once
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ftd {

// Asks for the tile registers, for all threads of the process and its children; whether they may be used. Asking twice
// does no harm.
inline bool permit_amx() {
#if defined(__linux__) && defined(__x86_64__) && defined(SYS_arch_prctl)
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
}

}  // namespace ftd

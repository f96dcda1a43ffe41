# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Asks the system for the registers of AMX; apart from the pool, because cpu needs the answer before there is one."""

cdef extern from "amx_permission.h" namespace "ftd":
    bint permit_amx()


def permitted() -> bool:
    """Ask for this process's use of AMX's tiles and return whether it has it; may be asked again."""
    return permit_amx()

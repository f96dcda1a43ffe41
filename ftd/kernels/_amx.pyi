"""Types of the compiled module."""

def permitted() -> bool:
    """Ask for this process's use of AMX's tiles and return whether it has it; may be asked again."""

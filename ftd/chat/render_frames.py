"""How the daemon and the render worker cut their stream into frames."""

import struct

# Length of the body, little endian
HEADER = struct.Struct("<I")
MAX_FRAME_BYTES = 256 << 20

"""The bounds of calls to the controller, which both ends know: the controller refuses larger calls, and brokers send none.

A broker of another version may have other bounds; the errors name those of the controller.
"""

from __future__ import annotations

#: The maximum number of bytes of one request. A topic of 10,000 partitions with assignments takes 0.1 MB.
MAX_REQUEST_BYTES = 512 << 10
#: The maximum number of commands of one call.
MAX_COMMANDS_OF_A_CALL = 64

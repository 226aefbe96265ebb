"""Python types of the decoder's columns, whose source has C types."""

OFFSET: int
TIMESTAMP: int
TIMESTAMP_TYPE: int
KEY: int
VALUE: int
HEADERS: int

class Columns:
    wanted: int
    rows: int
    foreign: int
    def __init__(self, wanted: int, most_rows: int, most_bytes: int) -> None: ...
    def take(
        self,
    ) -> tuple[int, int, list[bytearray], list[tuple[int, int, bytearray, bytearray, bytearray]]]: ...

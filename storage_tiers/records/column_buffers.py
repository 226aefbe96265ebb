"""Arrow columns under construction: the buffers that the decoder's kernel fills, without Arrow's libraries.

`column_walk` plans rows in its own loop: it writes numbers immediately, and records position and length of keys, values and
headers. Once the sizes are known, their memory is allocated in one piece and filled. Cython in pure-Python mode:
`column_buffers.pxd` holds the C types, and uncompiled it gives the same results.
Layouts: https://arrow.apache.org/docs/format/Columnar.html.

Invariants: a row is planned only after a check that there is room for it and that its bytes are inside their buffer. Only
planned rows are read and written. Every byte of a taken row has been written.
"""

from __future__ import annotations

try:
    import cython
except ImportError:  # installed without a compiler and without Cython: the same loops as plain Python
    from storage_tiers.records import plain_cython as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_FromStringAndSize
    from cython.cimports.libc.string import memcpy

#: Parts of a record that a reader may want, as bits.
OFFSET, TIMESTAMP, TIMESTAMP_TYPE, KEY, VALUE, HEADERS = 1, 2, 4, 8, 16, 32

_FIRST_HEADERS = 1024


def _unwritten(size: cython.Py_ssize_t) -> bytearray:
    """Uninitialized memory: zeroing it would cost as much as the write that follows."""
    if cython.compiled:
        return PyByteArray_FromStringAndSize(cython.NULL, size)
    else:
        return bytearray(size)


class BytesColumn:
    """A column of variable width: 32-bit end positions, data, and a validity bit per row. A column of lists has no
    data of its own."""

    def __init__(self) -> None:
        self.expected = 0
        self.begin()

    def begin(self) -> None:
        self.room = self.rows = self.copied = self.size = self.nulls = 0
        self.end_buffer = self.valid_buffer = self.source_buffer = self.data_buffer = bytearray()

    def reserve(self, rows: cython.Py_ssize_t) -> None:
        """Makes room to plan `rows` rows in total; planned rows stay."""
        ends, valid, sources = _unwritten(4 * rows + 4), bytearray((rows + 7) >> 3), _unwritten(8 * rows)
        ends[: 4 * self.rows + 4] = self.end_buffer[: 4 * self.rows + 4] or bytes(4)
        valid[: len(self.valid_buffer)] = self.valid_buffer
        sources[: 8 * self.rows] = self.source_buffer[: 8 * self.rows]
        self.end_buffer, self.valid_buffer, self.source_buffer = ends, valid, sources
        self.ends = memoryview(ends).cast("i")
        self.sources = memoryview(sources).cast("q")
        self.valid = memoryview(valid)
        self.room = rows

    def allocate(self) -> None:
        """Allocates the data of the planned rows; copied data stays."""
        used: cython.Py_ssize_t = self.ends[self.copied] if self.copied else 0
        if self.size > len(self.data_buffer):
            # Arrow batches of one stream are alike: start with the size of the last one.
            larger = _unwritten(max(self.size, self.expected if used == 0 else 2 * len(self.data_buffer)))
            larger[:used] = memoryview(self.data_buffer)[:used]
            self.data_buffer = larger
            self.data = memoryview(larger)

    def copy(self, raw: cython.p_const_uchar) -> None:
        """Copies the rows from `raw` that were planned since the last call."""
        row: cython.Py_ssize_t
        start: cython.Py_ssize_t
        length: cython.Py_ssize_t
        for row in range(self.copied, self.rows):
            start = self.ends[row]
            length = self.ends[row + 1] - start
            if length == 0:
                continue
            if cython.compiled:
                memcpy(cython.address(self.data[start]), raw + self.sources[row], length)
            else:
                self.data[start : start + length] = raw[self.sources[row] : self.sources[row] + length]
        self.copied = self.rows

    def take(self) -> tuple[int, int, bytearray, bytearray, bytearray]:
        """Returns (rows, nulls, ends with a zero before them, validity, data) and resets the column."""
        taken = (self.rows, self.nulls, self.end_buffer, self.valid_buffer, self.data_buffer)
        self.expected = self.size
        self.begin()
        return taken


class Columns:
    """All columns of one Arrow batch of at most `most_rows` records with at most `most_bytes` bytes, or of a single larger
    record.

    `headers` are lists over `names` and `contents`; `foreign` counts names that are not ASCII.
    """

    def __init__(self, wanted: cython.int, most_rows: cython.Py_ssize_t, most_bytes: cython.longlong) -> None:
        if most_rows < 1 or not 0 < most_bytes < 1 << 31:
            raise ValueError(f"an Arrow batch of {most_rows} rows and {most_bytes} bytes cannot be built")
        self.wanted = wanted
        self.most_rows = most_rows
        self.most_bytes = most_bytes
        self.has_keys = wanted & KEY != 0
        self.has_values = wanted & VALUE != 0
        self.has_headers = wanted & HEADERS != 0
        self.keys, self.values, self.headers = BytesColumn(), BytesColumn(), BytesColumn()
        self.names, self.contents = BytesColumn(), BytesColumn()
        self.begin()

    def begin(self) -> None:
        self.rows = self.source = self.foreign = self.time_nulls = 0
        self.offset_buffer = self.time_buffer = self.time_valid_buffer = self.type_buffer = bytearray()
        self.is_open = False

    def open(self) -> None:
        """Allocates room for rows; called when the first record arrives."""
        if self.is_open:
            return
        rows: cython.Py_ssize_t = self.most_rows
        self.offset_buffer, self.time_buffer = _unwritten(8 * rows), _unwritten(8 * rows)
        self.type_buffer, self.time_valid_buffer = _unwritten(4 * rows), bytearray((rows + 7) >> 3)
        self.offsets = memoryview(self.offset_buffer).cast("q")
        self.times = memoryview(self.time_buffer).cast("q")
        self.types = memoryview(self.type_buffer).cast("i")
        self.time_valid = memoryview(self.time_valid_buffer)
        if self.has_keys:
            self.keys.reserve(rows)
        if self.has_values:
            self.values.reserve(rows)
        if self.has_headers:
            self.headers.reserve(rows)
            self.names.reserve(_FIRST_HEADERS)
            self.contents.reserve(_FIRST_HEADERS)
        self.is_open = True

    def more_headers(self, least: cython.longlong) -> None:
        room = self.names.rows + max(least, self.names.room)
        self.names.reserve(room)
        self.contents.reserve(room)

    def copy(self, raw: cython.p_const_uchar) -> None:
        """Allocates and copies the rows from `raw` that were planned since the last call."""
        columns = (self.keys, self.values, self.names, self.contents)
        for column in columns:
            column.allocate()
        with cython.nogil:
            self.keys.copy(raw)
            self.values.copy(raw)
            self.names.copy(raw)
            self.contents.copy(raw)

    def take(self) -> tuple[int, int, list[bytearray], list[tuple[int, int, bytearray, bytearray, bytearray]]]:
        """Returns (rows, null timestamps, [offsets, timestamps, their validity, types], [keys, values, headers, names,
        contents]) and resets the columns."""
        numbers = [self.offset_buffer, self.time_buffer, self.time_valid_buffer, self.type_buffer]
        columns = (self.keys, self.values, self.headers, self.names, self.contents)
        taken = (self.rows, self.time_nulls, numbers, [column.take() for column in columns])
        self.begin()
        return taken

"""The cleaner's kernel: maps each key of a log's dirty part to its newest offset, and selects the records of a batch that
stay.

A slot holds a key's 128-bit hash and its offset in 24 bytes, like Kafka's SkimpyOffsetMap, whatever the key's length. The hash
is SipHash-2-4 with a secret key. With Kafka's MD5 a producer could make two keys collide, so that one deletes the other's
records. Cython in pure-Python mode: `offset_map.pxd` holds the C types, and uncompiled it gives the same results.

Invariants: every index is compared with the end of the buffer before it is read; the newest record of a key is never dropped,
unless it is a tombstone that may be removed. The loop that maps keys releases the GIL; the bytes must not change meanwhile.

The caller decompresses batches and verifies CRCs. A record's headers are not checked.
Source: KIP-58 and `SkimpyOffsetMap`, `Cleaner.shouldRetainRecord` of Kafka 4.2; SipHash (Aumasson, Bernstein, 2012).
"""

from __future__ import annotations

from typing import NamedTuple

try:
    import cython
except ImportError:  # installed without a compiler and without Cython: the same loops as plain Python
    from storage_tiers.records import plain_cython as cython

from storage_tiers.errors import CorruptRecord

# The walker's codes, repeated because importers cannot see a name that a .pxd declares.
_SOUND = 0
_BAD_LENGTH = 1
_BAD_TIMESTAMP_DELTA = 2
_BAD_OFFSET_DELTA = 3
_BAD_KEY = 4
_BAD_VALUE = 6
_TOO_FEW_BYTES = 9

# Literals beyond 32 bits would be Python objects.
_TWO_TO_32 = 1 << 32
_MASK = (1 << 64) - 1
_SEED_0 = 0x736F6D6570736575
_SEED_1 = 0x646F72616E646F6D
_SEED_2 = 0x6C7967656E657261
_SEED_3 = 0x7465646279746573

# Positions in a batch (records/batch.py), and its header's size.
_LENGTH, _ATTRIBUTES, _BASE_TIMESTAMP, _MAX_TIMESTAMP, _COUNT = 8, 21, 27, 35, 57
_HEADER_BYTES = 61

#: Bytes of a slot: two words of hash, then the offset + 1 (0: the slot is empty).
SLOT_BYTES = 24


class KeptRecords(NamedTuple):
    """The records of one batch that are kept: their number, the tombstones among them, their highest timestamp delta in ms, and
    their bytes; None instead of bytes if all are kept."""

    records: int
    tombstones: int
    highest_delta_ms: int
    content: bytes | None


class CleanedBatches(NamedTuple):
    """The batches before index `stopped` are cleaned; they had `records` records. `written` are the bytes of the batches that
    keep records. `kept` has a row for each of these: (position in `written`, size, records, next offset, max timestamp in ms,
    whether it was changed). A named tuple for each would double the time of a small batch. The caller sets the CRC-32C of each
    changed batch."""

    stopped: int
    records: int
    written: bytearray
    kept: list[tuple[int, int, int, int, int, bool]]


class OffsetMap:
    """Maps keys to offsets. It holds `count` keys, at most `limit`, in a table of `slots` slots."""

    def __init__(self, table: cython.ulonglong[::1], load_factor: float, key: bytes) -> None:
        """`table` are zeroed 64-bit words, three a slot; at most the share `load_factor` of the slots is used. `key` are 16
        random bytes. ValueError for a table without room for one key."""
        self.table = table
        self.slots = len(table) // 3
        self.limit = min(int(self.slots * load_factor), self.slots - 1)
        if self.limit < 1:
            raise ValueError(f"a map of {self.slots} slots has no room for a key")
        self.count = 0
        self.first_key = int.from_bytes(key[:8], "little")
        self.second_key = int.from_bytes(key[8:16], "little")
        self.high = self.low = 0
        self.at = self.key_at = self.value_at = 0
        self.timestamp_delta = self.offset_delta = 0
        self.key_length = self.value_length = -1
        self.kept = self.tombstones = self.highest = 0
        self.pieces: list[tuple[int, int]] = []

    def add(self, payload, count, base_offset, start):  # type: ignore[no-untyped-def]
        """Maps each key of an uncompressed batch to its newest offset; records below offset `start` are skipped. False if a key
        has no room; the keys before it are in the map then. CorruptRecord if the framing is broken."""
        return self.map_keys(_pointer(payload), 0, len(payload), count, base_offset, start)

    def add_batches(self, data, batches, first, start):  # type: ignore[no-untyped-def]
        """Like `add`, for the whole batches of `data` from index `first` of `batches` on: (position, size, base offset …).
        Returns the index of the first batch that is not plain or has no room, which is left to `add`. CorruptRecord as
        `add`."""
        raw: cython.p_const_uchar = _pointer(data)
        index: cython.Py_ssize_t = first
        end: cython.Py_ssize_t = len(batches)
        at: cython.Py_ssize_t
        size: cython.Py_ssize_t
        base_offset: cython.longlong
        while index < end:
            row: tuple[int, ...] = batches[index]
            at, size, base_offset = row[0], row[1], row[2]
            if not _is_plain(raw, at):
                break
            if not self.map_keys(raw, at + _HEADER_BYTES, at + size, _int32(raw, at + _COUNT), base_offset, start):
                break
            index += 1
        return index

    def map_keys(self, raw, at, end, count, base_offset, start):  # type: ignore[no-untyped-def]
        """Does the work of `add` for the records in [at, end) of `raw`."""
        fault: cython.int = _SOUND
        has_room: cython.bint = True
        index: cython.longlong = 0
        self.at = at
        with cython.nogil:
            while index < count and has_room:
                fault = self.read_record(raw, end)
                if fault != _SOUND:
                    break
                if self.key_length >= 0 and base_offset + self.offset_delta >= start:
                    has_room = self.put(raw, base_offset + self.offset_delta)
                index += 1
        if fault != _SOUND:
            raise _corrupt(fault, index, base_offset)
        return has_room

    def put(self, raw, offset):  # type: ignore[no-untyped-def]
        """Maps the record's key to `offset`; false if there is no room for it."""
        table: cython.ulonglong[::1] = self.table
        slot: cython.longlong = self.slot(raw)
        if table[slot + 2] == 0:
            if self.count >= self.limit:
                return False
            self.count += 1
            table[slot] = self.high
            table[slot + 1] = self.low
        table[slot + 2] = offset + 1
        return True

    def clean(self, payload, count, base_offset, latest, keep_tombstones):  # type: ignore[no-untyped-def]
        """The records of an uncompressed batch that are kept, as `KeptRecords`.

        A record above offset `latest`, up to which the map has all keys, is kept. A record at or below `latest` is kept if no
        newer record has its key and it is not a tombstone (or `keep_tombstones` is set). A record there without a key is
        removed. CorruptRecord if the framing is broken."""
        self.select(_pointer(payload), 0, len(payload), count, base_offset, latest, keep_tombstones)
        if self.kept == count:
            return KeptRecords(self.kept, self.tombstones, self.highest, None)
        view = memoryview(payload)
        content = b"".join([view[first:last] for first, last in self.pieces])
        return KeptRecords(self.kept, self.tombstones, self.highest, content)

    def clean_batches(self, data, batches, first, end, latest, lasts):  # type: ignore[no-untyped-def]
        """Like `clean`, for the whole batches of `data` at indexes [`first`, `end`) of `batches`. Returns `CleanedBatches`. The
        batches are (position, size, base offset, next offset …). Stops at the first one that is not plain, keeps a tombstone,
        or keeps nothing although its last offset is in `lasts`: that batch is left to `clean`. CorruptRecord if the framing is
        broken."""
        raw: cython.p_const_uchar = _pointer(data)
        view = memoryview(data)
        index: cython.Py_ssize_t = first
        at: cython.Py_ssize_t
        size: cython.Py_ssize_t
        count: cython.longlong
        records: cython.longlong = 0
        base_offset: cython.longlong
        highest: cython.longlong
        written = bytearray()
        kept: list[tuple[int, int, int, int, int, bool]] = []
        while index < end:
            row: tuple[int, ...] = batches[index]
            at, size, base_offset = row[0], row[1], row[2]
            if not _is_plain(raw, at):
                break
            count = _int32(raw, at + _COUNT)
            self.select(raw, at + _HEADER_BYTES, at + size, count, base_offset, latest, True)
            if self.tombstones or (self.kept == 0 and row[3] - 1 in lasts):
                break
            begin = len(written)
            if self.kept == count:
                written += view[at : at + size]
                kept.append((begin, size, count, row[3], _int64(raw, at + _MAX_TIMESTAMP), False))
            elif self.kept:
                highest = _int64(raw, at + _BASE_TIMESTAMP) + self.highest
                written += view[at : at + _HEADER_BYTES]
                for piece in self.pieces:
                    written += view[piece[0] : piece[1]]
                size = len(written) - begin
                written[begin + _LENGTH : begin + _LENGTH + 4] = (size - _LENGTH - 4).to_bytes(4, "big")
                written[begin + _MAX_TIMESTAMP : begin + _MAX_TIMESTAMP + 8] = highest.to_bytes(8, "big", signed=True)
                written[begin + _COUNT : begin + _COUNT + 4] = self.kept.to_bytes(4, "big")
                kept.append((begin, size, self.kept, row[3], highest, True))
            records += count
            index += 1
        return CleanedBatches(index, records, written, kept)

    def select(self, raw, at, end, count, base_offset, latest, keep_tombstones):  # type: ignore[no-untyped-def]
        """Sets `kept`, `tombstones`, `highest` and, unless all are kept, `pieces` of the records in [at, end)."""
        fault: cython.int = _SOUND
        index: cython.longlong = 0
        begin: cython.Py_ssize_t
        run: cython.Py_ssize_t = -1
        pieces: list[tuple[int, int]] = []
        self.kept = self.tombstones = self.highest = 0
        self.at = at
        while index < count:
            begin = self.at
            fault = self.read_record(raw, end)
            if fault != _SOUND:
                break
            if self.is_kept(raw, base_offset + self.offset_delta, latest, keep_tombstones):
                if self.kept == 0 or self.timestamp_delta > self.highest:
                    self.highest = self.timestamp_delta
                self.kept += 1
                if self.value_length < 0:
                    self.tombstones += 1
                if run < 0:
                    run = begin
            elif run >= 0:
                pieces.append((run, begin))
                run = -1
            index += 1
        if fault != _SOUND:
            raise _corrupt(fault, index, base_offset)
        if run >= 0:
            pieces.append((run, self.at))
        self.pieces = pieces

    def read_record(self, raw, total):  # type: ignore[no-untyped-def]
        """Reads the record at `at` up to its value's length."""
        at: cython.Py_ssize_t = self.at
        packed: cython.longlong = _varint(raw, at, total)
        if packed < 0:
            return _TOO_FEW_BYTES if at >= total else _BAD_LENGTH
        length: cython.longlong = _zigzag(packed)
        at += packed & 7
        if length < 1 or length > total - at:
            return _BAD_LENGTH
        end: cython.Py_ssize_t = at + length
        at += 1  # the record's attributes
        width: cython.Py_ssize_t = _varlong_width(raw, at, end)
        if width == 0:
            return _BAD_TIMESTAMP_DELTA
        self.timestamp_delta = _varlong(raw, at, width)
        at += width
        packed = _varint(raw, at, end)
        if packed < 0:
            return _BAD_OFFSET_DELTA
        self.offset_delta = _zigzag(packed)
        if self.offset_delta < 0:
            return _BAD_OFFSET_DELTA
        at += packed & 7
        packed = _varint(raw, at, end)
        if packed < 0:
            return _BAD_KEY
        length = _zigzag(packed)
        at += packed & 7
        if length < -1 or length > end - at:
            return _BAD_KEY
        self.key_at = at
        self.key_length = length
        if length > 0:
            at += length
        packed = _varint(raw, at, end)
        if packed < 0:
            return _BAD_VALUE
        length = _zigzag(packed)
        at += packed & 7
        if length < -1 or length > end - at:
            return _BAD_VALUE
        self.value_at = at
        self.value_length = length
        self.at = end
        return _SOUND

    def is_kept(self, raw, offset, latest, keep_tombstones):  # type: ignore[no-untyped-def]
        if offset > latest:
            return True
        if self.key_length < 0:
            return False
        if self.value_length < 0 and not keep_tombstones:
            return False
        newest: cython.ulonglong = self.table[self.slot(raw) + 2]
        own: cython.ulonglong = offset + 1
        return own >= newest

    def slot(self, raw):  # type: ignore[no-untyped-def]
        """The index in the table of the record's key, or of the empty slot where it belongs. One slot is always empty."""
        self.hash(raw)
        table: cython.ulonglong[::1] = self.table
        slots: cython.ulonglong = self.slots
        first: cython.ulonglong = self.high % slots
        at: cython.longlong = first * 3
        while table[at + 2] != 0 and (table[at] != self.high or table[at + 1] != self.low):
            at += 3
            if at >= self.slots * 3:
                at = 0
        return at

    def hash(self, raw):  # type: ignore[no-untyped-def]
        """Sets `high` and `low` to the hash of the record's key."""
        v0: cython.ulonglong = self.first_key ^ _SEED_0
        v1: cython.ulonglong = self.second_key ^ _SEED_1 ^ 0xEE
        v2: cython.ulonglong = self.first_key ^ _SEED_2
        v3: cython.ulonglong = self.second_key ^ _SEED_3
        blocks: cython.longlong = self.key_length >> 3
        word: cython.ulonglong
        step: cython.longlong
        _turn: cython.int
        # One step for each of the key's blocks, the last of which has the key's length; then two steps of four rounds, which
        # give the two words of the hash.
        for step in range(blocks + 3):
            word = 0
            if step < blocks:
                word = _word(raw, self.key_at + 8 * step, 8)
            elif step == blocks:
                word = self.key_length
                word = (word << 56) & _MASK | _word(raw, self.key_at + 8 * blocks, self.key_length & 7)
            elif step == blocks + 1:
                v2 ^= 0xEE
            else:
                self.high = v0 ^ v1 ^ v2 ^ v3
                v1 ^= 0xDD
            v3 ^= word
            for _turn in range(2 if step <= blocks else 4):
                v0 = (v0 + v1) & _MASK
                v1 = ((v1 << 13) & _MASK | (v1 >> 51)) ^ v0
                v0 = (v0 << 32) & _MASK | (v0 >> 32)
                v2 = (v2 + v3) & _MASK
                v3 = ((v3 << 16) & _MASK | (v3 >> 48)) ^ v2
                v0 = (v0 + v3) & _MASK
                v3 = ((v3 << 21) & _MASK | (v3 >> 43)) ^ v0
                v2 = (v2 + v1) & _MASK
                v1 = ((v1 << 17) & _MASK | (v1 >> 47)) ^ v2
                v2 = (v2 << 32) & _MASK | (v2 >> 32)
            v0 ^= word
        self.low = v0 ^ v1 ^ v2 ^ v3


def _corrupt(fault, index, base_offset):  # type: ignore[no-untyped-def]
    from storage_tiers.records.walker import RECORD_FAULTS

    return CorruptRecord(f"record {index} of the batch at offset {base_offset}: {RECORD_FAULTS[fault]}")


def _pointer(buffer):  # type: ignore[no-untyped-def]
    if cython.compiled:
        return cython.address(buffer[0])
    else:
        return buffer


def _is_plain(raw, at):  # type: ignore[no-untyped-def]
    """Whether the batch has records and no attribute is set: codec, append time, transaction, control, delete horizon."""
    return raw[at + _ATTRIBUTES] == 0 and raw[at + _ATTRIBUTES + 1] == 0 and _int32(raw, at + _COUNT) > 0


def _int32(raw, at):  # type: ignore[no-untyped-def]
    """A signed big-endian number."""
    number: cython.longlong = _unsigned(raw, at, 4)
    return number - _TWO_TO_32 if number >> 31 else number


def _int64(raw, at):  # type: ignore[no-untyped-def]
    """A signed big-endian number."""
    if raw[at] < 0x80:
        return _unsigned(raw, at, 8)
    complement: cython.longlong = _MASK - _unsigned(raw, at, 8)
    return -complement - 1


def _unsigned(raw, at, length):  # type: ignore[no-untyped-def]
    number: cython.ulonglong = 0
    index: cython.Py_ssize_t
    for index in range(length):
        number = number << 8 | raw[at + index]
    return number


def _word(raw, at, length):  # type: ignore[no-untyped-def]
    """`length` bytes, at most 8, as a little-endian number."""
    number: cython.ulonglong = 0
    byte: cython.ulonglong
    index: cython.Py_ssize_t
    for index in range(length):
        byte = raw[at + index]
        number |= byte << 8 * index
    return number


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint(raw: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.longlong:
    """The 32-bit varint at `at`, still zigzag-encoded, with its width in the low three bits; -1 if there is none."""
    if at >= end:
        return -1
    byte: cython.longlong = raw[at]
    if byte < 0x80:
        return byte << 3 | 1
    number: cython.longlong = byte & 0x7F
    width: cython.longlong
    for width in range(1, 5):
        if at + width >= end:
            return -1
        byte = raw[at + width]
        number |= (byte & 0x7F) << 7 * width
        if byte < 0x80:
            return number << 3 | (width + 1) if number < _TWO_TO_32 else -1
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _zigzag(packed: cython.longlong) -> cython.longlong:
    number: cython.longlong = packed >> 3
    return (number >> 1) ^ -(number & 1)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varlong_width(raw: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The number of bytes of the 64-bit varlong at `at`; 0 if it is cut short or too wide."""
    width: cython.Py_ssize_t
    for width in range(10):
        if at + width >= end:
            return 0
        if raw[at + width] < 0x80:
            return width + 1 if width < 9 or raw[at + width] <= 1 else 0
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varlong(raw: cython.p_const_uchar, at: cython.Py_ssize_t, width: cython.Py_ssize_t) -> cython.longlong:
    """The 64-bit varlong of `width` bytes at `at`."""
    number: cython.ulonglong = 0
    group: cython.ulonglong
    index: cython.Py_ssize_t
    for index in range(width):
        group = raw[at + index] & 0x7F
        number |= group << 7 * index
    half: cython.longlong = number >> 1
    odd: cython.longlong = number & 1
    return half ^ -odd

"""The hash by which Kafka's Java producer chooses the partition of a key (`Utils.murmur2` of Kafka 4.2).

Cython in pure-Python mode; its C types are in `murmur2.pxd`, and uncompiled it gives the same numbers.
"""

from __future__ import annotations

try:
    import cython
except ImportError:  # installed without a compiler and without Cython: the same loop as plain Python
    from storage_tiers.records import plain_cython as cython

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """MurmurHash2 as Kafka's Java client computes it: a signed 32-bit number."""
    raw: cython.p_const_uchar = data
    length: cython.Py_ssize_t = len(data)
    whole: cython.Py_ssize_t = length & ~3
    h: cython.ulonglong = (_SEED ^ length) & _MASK
    k: cython.ulonglong
    at: cython.Py_ssize_t = 0
    while at < whole:
        k = raw[at] | raw[at + 1] << 8 | raw[at + 2] << 16 | _unsigned(raw[at + 3]) << 24
        k = k * _MULTIPLIER & _MASK
        k = (k ^ k >> 24) * _MULTIPLIER & _MASK
        h = h * _MULTIPLIER & _MASK ^ k
        at += 4
    if length != whole:
        while length > whole:
            length -= 1
            h ^= _unsigned(raw[length]) << 8 * (length - whole)
        h = h * _MULTIPLIER & _MASK
    h = (h ^ h >> 13) * _MULTIPLIER & _MASK
    h ^= h >> 15
    signed: cython.longlong = h
    number: int = signed - _TWO_TO_32 if signed >> 31 else signed
    return number


def _unsigned(byte: cython.ulonglong) -> cython.ulonglong:
    return byte


_TWO_TO_32 = 1 << 32

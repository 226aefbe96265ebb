# C types of murmur2.py.

cdef unsigned long long _SEED, _MULTIPLIER, _MASK
cdef long long _TWO_TO_32

cpdef murmur2(bytes data)
cdef unsigned long long _unsigned(unsigned long long byte) noexcept nogil

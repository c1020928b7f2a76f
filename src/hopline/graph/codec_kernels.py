"""Compiled code of `codec.py`: packing blocks of numbers and reading any of them alone.

Knows bytes and blocks, nothing of graphs. A block of 64 numbers below 2**bits lies in
`data[offsets[b]:offsets[b + 1]]` as

    head    `head_bytes(bits)` bytes: 6 bits of width w, then `bits` bits of base
    upper   none, or Elias-Fano's upper bits, below 128: the j-th set one is bit (y[j] >> w) + j
    lower   8 w bytes: the w lower bits of every y, packed

and number j is (base + y[j]) mod 2**bits. With an upper part y is the running sum of the differences
modulo 2**bits, so it ascends whatever the numbers do (Elias 1974, Fano 1971; the choice of block by block
as in Ottaviano & Venturini, SIGIR 2014). Without one, y is the distance from the smallest.
"""

from __future__ import annotations

import numpy as np

from hopline.intrinsics import count_ones, load_byte, load_half, load_word, nth_one, prefetch_at
from hopline.jit import njit

#: Numbers of a block, as a power of two. Smaller ones need more heads, larger ones longer searches.
BLOCK_BITS = 6
BLOCK = 1 << BLOCK_BITS
_IN_BLOCK = BLOCK - 1
_WIDTH_BITS = np.uint64(6)
_WIDTH = np.uint64(63)
_ONE = np.uint64(1)
#: Bytes after the last block, since words are read whole.
PADDING = 16
#: Edges between asking for a block and reading it.
_AHEAD = 24


@njit(forceinline=True)
def head_bytes(bits):  # type: ignore[no-untyped-def]
    """Bytes of a block's head."""
    return np.int64(4) if bits <= 26 else np.int64(8)


@njit(forceinline=True)
def read_number(offsets_at, data_at, bits, position):  # type: ignore[no-untyped-def]
    """The number at `position`, int64. Reads its block's head and two places of it.

    Args:
        offsets_at: address of uint32 [B + 1]. data_at: of uint8, `PADDING` longer than offsets[B].
        bits: of every number.
    """
    place = offsets_at + (position >> BLOCK_BITS) * 4
    j = position & _IN_BLOCK
    at = data_at + load_half(place)
    end = data_at + load_half(place + 4)
    head = load_word(at)
    width = np.int64(head & _WIDTH)
    lower_at = end - 8 * width
    bit = j * width
    y = load_word(lower_at + (bit >> 3)) >> np.uint64(bit & 7)
    y &= (_ONE << np.uint64(width)) - _ONE
    at += head_bytes(bits)
    if at < lower_at:
        # Without a branch, which would be mispredicted: half of all reads end in each of the two words.
        word, second = load_word(at), load_word(at + 8)
        ones = count_ones(word)
        first, before = np.int64(0), np.int64(0)
        if j >= ones:
            word, first, before = second, np.int64(64), ones
        y += np.uint64(first + nth_one(word, j - before) - j) << np.uint64(width)
    base = head >> _WIDTH_BITS
    return np.int64((base + y) & ((_ONE << np.uint64(bits)) - _ONE))


@njit(forceinline=True)
def ask_for(offsets_at, data_at, position):  # type: ignore[no-untyped-def]
    """Prefetch what `read_number` reads of a block: its head, and where the number should lie."""
    place = offsets_at + (position >> BLOCK_BITS) * 4
    at = data_at + load_half(place)
    prefetch_at(at)
    # Lower bits are about 16 wide, unless blocks are so small that any guess will do.
    prefetch_at(at + 24 + 2 * (position & _IN_BLOCK))


@njit(nogil=True, cache=True)
def read_numbers(packed, positions, count, out):  # type: ignore[no-untyped-def]
    """out[e] = the number at positions[e], for e < count.

    Args:
        packed: (offsets_at, data_at, bits), see `read_number`.
        positions: int64 [>= count]; out: any integers [>= count].
    """
    offsets_at, data_at, bits = packed
    for e in range(min(count, _AHEAD)):
        ask_for(offsets_at, data_at, positions[e])
    for e in range(count):
        if e + _AHEAD < count:
            ask_for(offsets_at, data_at, positions[e + _AHEAD])
        out[e] = read_number(offsets_at, data_at, bits, positions[e])


@njit(nogil=True, cache=True)
def read_range(packed, first, out):  # type: ignore[no-untyped-def]
    """out[i] = the number at first + i."""
    offsets_at, data_at, bits = packed
    for i in range(out.shape[0]):
        out[i] = read_number(offsets_at, data_at, bits, first + i)


@njit(forceinline=True)
def _bit_length(value):  # type: ignore[no-untyped-def]
    length = np.int64(0)
    while value > 0:
        value >>= 1
        length += 1
    return length


@njit(forceinline=True)
def _shape(numbers, bits, first, y):  # type: ignore[no-untyped-def]
    """Choose how to pack a block: fills y int64 [BLOCK]; returns (base, width, bytes of the upper part)."""
    mask = (np.int64(1) << np.int64(bits)) - 1
    last = numbers.shape[0] - 1
    low = high = np.int64(numbers[first])
    y[0] = 0
    for j in range(1, BLOCK):
        here, before = np.int64(numbers[min(first + j, last)]), np.int64(numbers[min(first + j - 1, last)])
        y[j] = y[j - 1] + ((here - before) & mask)
        low, high = min(low, here), max(high, here)
    # Elias-Fano takes BLOCK (w + 1) + y / 2**w bits. One bit less would often be smaller, by 0.3 bits a
    # number, but then the upper part would be three words rather than two.
    plain = _bit_length(high - low)
    best, best_bytes, upper = plain, 8 * plain, np.int64(0)
    width = _bit_length(y[_IN_BLOCK] >> BLOCK_BITS)
    part = ((y[_IN_BLOCK] >> width) + BLOCK + 7) >> 3
    if 8 * width + part < best_bytes:
        best, upper = width, part
    if upper == 0:
        for j in range(BLOCK):
            y[j] = np.int64(numbers[min(first + j, last)]) - low
        return low, best, upper
    return np.int64(numbers[first]), best, upper


@njit(nogil=True, cache=True)
def block_bytes(numbers, bits, sizes):  # type: ignore[no-untyped-def]
    """sizes[b] = bytes of block b of `numbers` once packed: int64 [B]."""
    y = np.empty(BLOCK, np.int64)
    for b in range(sizes.shape[0]):
        _, width, upper = _shape(numbers, bits, b << BLOCK_BITS, y)
        sizes[b] = head_bytes(bits) + upper + 8 * width


@njit(nogil=True, cache=True)
def pack(numbers, bits, offsets, data):  # type: ignore[no-untyped-def]
    """Write every block into `data`, which is zero, where `offsets` says (from `block_bytes`)."""
    y = np.empty(BLOCK, np.int64)
    for b in range(offsets.shape[0] - 1):
        base, width, upper = _shape(numbers, bits, b << BLOCK_BITS, y)
        begin, end = np.int64(offsets[b]), np.int64(offsets[b + 1])
        head = (base << 6) | width
        for i in range(head_bytes(bits)):
            data[begin + i] = (head >> (8 * i)) & 255
        upper_at, lower_at = begin + head_bytes(bits), end - 8 * width
        held, used, at = np.uint64(0), 0, lower_at
        for j in range(BLOCK):
            if upper > 0:
                bit = (y[j] >> width) + j
                data[upper_at + (bit >> 3)] |= np.uint8(1 << (bit & 7))
            held |= np.uint64(y[j] & ((np.int64(1) << width) - 1)) << np.uint64(used)
            used += width
            while used >= 8:
                data[at] = np.uint8(held & np.uint64(255))
                held >>= np.uint64(8)
                used -= 8
                at += 1


@njit(nogil=True, cache=True)
def first_bad_block(offsets, num_bytes):  # type: ignore[no-untyped-def]
    """The first block that does not lie after the one before it, within `num_bytes`; -1 where all do."""
    if offsets[0] != 0:
        return np.int64(0)
    for b in range(offsets.shape[0] - 1):
        if offsets[b + 1] <= offsets[b] or offsets[b + 1] > num_bytes:
            return np.int64(b)
    return np.int64(-1)


#: Weight codes between two of their running sums, as a power of two.
SUM_BITS = 8


@njit
def code_sum(codes_at, sums_at, position):  # type: ignore[no-untyped-def]
    """The sum of all codes before `position`, int64. Arguments: addresses of uint8 and int64."""
    block = position >> SUM_BITS
    total = np.int64(load_word(sums_at + 8 * block))
    for at in range(codes_at + (block << SUM_BITS), codes_at + position):
        total += load_byte(at)
    return total


@njit(nogil=True, cache=True)
def code_sums(codes, sums):  # type: ignore[no-untyped-def]
    """sums[b] = the sum of the first b blocks of uint8 `codes`: int64 [len(codes) >> SUM_BITS, plus 1]."""
    total = np.int64(0)
    for b in range(sums.shape[0]):
        sums[b] = total
        first = b << SUM_BITS
        for at in range(first, min(first + (1 << SUM_BITS), codes.shape[0])):
            total += codes[at]

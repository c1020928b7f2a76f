"""Compiled code of `codec.py`: packs blocks of numbers and reads any single number.

Knows bytes and blocks, nothing of graphs. A block of 64 numbers below 2**bits lies in
`data[offsets[b]:offsets[b + 1]]` as

    head    `head_bytes(bits)` bytes: 6 bits of width w, then `bits` bits of base
    upper   none, or Elias-Fano's upper bits, below 128: the j-th set one is bit (y[j] >> w) + j
    lower   8 w bytes: the w lower bits of every y, packed

and number j is (base + y[j]) mod 2**bits. With an upper part y is the running sum of the differences
modulo 2**bits, so it ascends for any numbers (Elias 1974, Fano 1971; the choice block by block as in
Ottaviano & Venturini, SIGIR 2014). Without one, y is the distance from the smallest number.

Where blocks would save little, numbers are packed *evenly*: number i is bits [i bits, (i + 1) bits) of
`data`, and there are no offsets. Reading a number then reads one word of memory instead of four in three
places.
"""

from __future__ import annotations

import numpy as np

from hopline.kernels.intrinsics import count_ones, load_byte, load_half, load_word, nth_one, prefetch_at
from hopline.kernels.jit import njit

#: Numbers of a block, as a power of two. Smaller blocks need more heads, larger ones longer searches.
BLOCK_BITS = 6
BLOCK = 1 << BLOCK_BITS
_IN_BLOCK = BLOCK - 1
_WIDTH_BITS = np.uint64(6)
_WIDTH = np.uint64(63)
_ONE = np.uint64(1)
#: Bytes after the last block, since whole words are read.
PADDING = 16
#: Edges between prefetching a block and reading it.
_AHEAD = 24


@njit(forceinline=True)
def head_bytes(bits):  # type: ignore[no-untyped-def]
    """Bytes of a block's head."""
    return np.int64(4) if bits <= 26 else np.int64(8)


@njit(forceinline=True)
def _mask(bits):  # type: ignore[no-untyped-def]
    return (_ONE << np.uint64(bits)) - _ONE


@njit(forceinline=True)
def read_number(offsets_at, data_at, bits, position):  # type: ignore[no-untyped-def]
    """The number at `position`, int64. Reads the block's head and two places of it; or one word, see above.

    Args:
        offsets_at: address of uint32 [B + 1], 0 for evenly packed numbers.
        data_at: of uint8, `PADDING` longer than offsets[B] or than all bits.
        bits: of every number.
    """
    if offsets_at == 0:
        bit = position * bits
        return np.int64((load_word(data_at + (bit >> 3)) >> np.uint64(bit & 7)) & _mask(bits))
    place = offsets_at + (position >> BLOCK_BITS) * 4
    j = position & _IN_BLOCK
    at = data_at + load_half(place)
    end = data_at + load_half(place + 4)
    head = load_word(at)
    width = np.int64(head & _WIDTH)
    lower_at = end - 8 * width
    bit = j * width
    y = load_word(lower_at + (bit >> 3)) >> np.uint64(bit & 7)
    y &= _mask(width)
    at += head_bytes(bits)
    if at < lower_at:
        # Without a branch, which would be mispredicted: half of all reads end in either word.
        word, second = load_word(at), load_word(at + 8)
        ones = count_ones(word)
        first, before = np.int64(0), np.int64(0)
        if j >= ones:
            word, first, before = second, np.int64(64), ones
        y += np.uint64(first + nth_one(word, j - before) - j) << np.uint64(width)
    base = head >> _WIDTH_BITS
    return np.int64((base + y) & _mask(bits))


@njit(forceinline=True)
def prefetch_block(offsets_at, data_at, position):  # type: ignore[no-untyped-def]
    """Prefetch what `read_number` reads of a block: its head, and the estimated place of the number.

    Does nothing for evenly packed numbers: `touch_number` prefetches them.
    """
    if offsets_at == 0:
        return
    place = offsets_at + (position >> BLOCK_BITS) * 4
    at = data_at + load_half(place)
    prefetch_at(at)
    # Lower bits are about 16 wide, unless blocks are so small that any estimate works.
    prefetch_at(at + 24 + 2 * (position & _IN_BLOCK))


@njit(forceinline=True)
def touch_number(offsets_at, data_at, bits, position):  # type: ignore[no-untyped-def]
    """Prefetch the first thing that `read_number` reads: the offset of the block, or the number."""
    if offsets_at == 0:
        prefetch_at(data_at + ((position * bits) >> 3))
    else:
        prefetch_at(offsets_at + (position >> BLOCK_BITS) * 4)


@njit(nogil=True, cache=True)
def read_numbers(packed, positions, count, out):  # type: ignore[no-untyped-def]
    """out[e] = the number at positions[e], for e < count.

    Args:
        packed: (offsets_at, data_at, bits), see `read_number`.
        positions: int64 [>= count]; out: any integers [>= count].
    """
    offsets_at, data_at, bits = packed
    for e in range(min(count, _AHEAD)):
        prefetch_block(offsets_at, data_at, positions[e])
    for e in range(count):
        if e + _AHEAD < count:
            prefetch_block(offsets_at, data_at, positions[e + _AHEAD])
        out[e] = read_number(offsets_at, data_at, bits, positions[e])


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
    # Elias-Fano needs BLOCK (w + 1) + y / 2**w bits. One bit less would often be smaller, by 0.3 bits a
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
    """Write every block into `data`, which is zero, at `offsets` (from `block_bytes`)."""
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
def pack_evenly(numbers, bits, data):  # type: ignore[no-untyped-def]
    """Write numbers below 2**bits, bits <= 56, contiguously into `data`."""
    held, used, at = np.uint64(0), 0, 0
    for i in range(numbers.shape[0]):
        held |= np.uint64(numbers[i]) << np.uint64(used)
        used += bits
        while used >= 8:
            data[at] = np.uint8(held & np.uint64(255))
            held >>= np.uint64(8)
            used -= 8
            at += 1
    if used > 0:
        data[at] = np.uint8(held)


@njit(nogil=True, cache=True)
def first_bad_block(offsets, data, bits):  # type: ignore[no-untyped-def]
    """The first block that does not follow the previous one within uint8 `data`, or whose head claims more
    bytes than it has; -1 for none."""
    if offsets[0] != 0:
        return np.int64(0)
    for b in range(offsets.shape[0] - 1):
        begin, end = np.int64(offsets[b]), np.int64(offsets[b + 1])
        if end > data.shape[0] - PADDING or begin + head_bytes(bits) > end:
            return np.int64(b)
        if begin + head_bytes(bits) + 8 * np.int64(data[begin] & 63) > end:
            return np.int64(b)
    return np.int64(-1)


#: Weight codes between two of their running sums, as a power of two.
SUM_BITS = 10
#: Summing this many codes is as fast as a look-up.
FEW = 512


_EVERY_OTHER = np.uint64(0x00FF00FF00FF00FF)
_EIGHT = np.uint64(8)
_ADD_ALL = np.uint64(0x0001000100010001)
_TOP = np.uint64(48)


@njit(forceinline=True)
def sum_of_eight(at):  # type: ignore[no-untyped-def]
    """The sum of the eight bytes at an address, int64."""
    word = load_word(at)
    pairs = (word & _EVERY_OTHER) + ((word >> _EIGHT) & _EVERY_OTHER)
    return np.int64((pairs * _ADD_ALL) >> _TOP)


@njit(forceinline=True)
def sum_of_bytes(at, end):  # type: ignore[no-untyped-def]
    """The sum of the bytes between two addresses, int64."""
    total = np.int64(0)
    while at + 8 <= end:
        total += sum_of_eight(at)
        at += 8
    while at < end:
        total += load_byte(at)
        at += 1
    return total


@njit
def code_sum(codes_at, sums_at, position):  # type: ignore[no-untyped-def]
    """The sum of all codes before `position`, int64. Arguments: addresses of uint8 and int64."""
    block = position >> SUM_BITS
    total = np.int64(load_word(sums_at + 8 * block))
    return total + sum_of_bytes(codes_at + (block << SUM_BITS), codes_at + position)


@njit(nogil=True, cache=True)
def code_sums(codes, sums):  # type: ignore[no-untyped-def]
    """sums[b] = the sum of the first b blocks of uint8 `codes`: int64 [len(codes) >> SUM_BITS, plus 1]."""
    total = np.int64(0)
    for b in range(sums.shape[0]):
        sums[b] = total
        first = b << SUM_BITS
        for at in range(first, min(first + (1 << SUM_BITS), codes.shape[0])):
            total += codes[at]


#: Destinations of a group, as a power of two, and its bytes: the beginning of its first list (31 bits) with
#: the flag below, and the length of each list. If a length does not fit into a byte, the 31 bits are the
#: number of a row of a second array instead, int32 [GROUP + 1]: the beginning of each list and the last
#: end.
GROUP_BITS = 4
GROUP = 1 << GROUP_BITS
GROUP_BYTES = 4 + GROUP
LONG = 1 << 31
_IN_GROUP = GROUP - 1
_ALL = ~np.uint64(0)


@njit(forceinline=True)
def read_bounds(groups_at, long_at, v):  # type: ignore[no-untyped-def]
    """Begin and end of the list of destination `v`, int64. Arguments: addresses, and int64."""
    at = groups_at + (v >> GROUP_BITS) * GROUP_BYTES
    j = v & _IN_GROUP
    first = load_half(at)
    if first >= LONG:
        at = long_at + ((first - LONG) * (GROUP + 1) + j) * 4
        return load_half(at), load_half(at + 4)
    low, high = load_word(at + 4), load_word(at + 12)
    shift = np.uint64(8 * (j & 7))
    before = (_ONE << shift) - _ONE
    low &= before if j < 8 else _ALL
    high &= before if j >= 8 else np.uint64(0)
    pairs = (low & _EVERY_OTHER) + ((low >> _EIGHT) & _EVERY_OTHER)
    pairs += (high & _EVERY_OTHER) + ((high >> _EIGHT) & _EVERY_OTHER)
    start = first + np.int64((pairs * _ADD_ALL) >> _TOP)
    return start, start + load_byte(at + 4 + j)


@njit(forceinline=True)
def prefetch_packed_bounds(groups_at, v):  # type: ignore[no-untyped-def]
    """Prefetch what `read_bounds` reads."""
    prefetch_at(groups_at + (v >> GROUP_BITS) * GROUP_BYTES)


@njit(nogil=True, cache=True)
def read_starts(packed, nodes, out):  # type: ignore[no-untyped-def]
    """out[i] = where the list of nodes[i] begins, int64 [n]."""
    for i in range(nodes.shape[0]):
        out[i] = read_bounds(packed[0], packed[1], nodes[i])[0]


@njit(nogil=True, cache=True)
def pack_bounds(indptr, is_long, groups, longs):  # type: ignore[no-untyped-def]
    """Fill uint8 [G, GROUP_BYTES] `groups` and int32 [those of is_long, GROUP + 1] `longs`, both zero, from
    int64 [N + 1] bounds; G = (N >> GROUP_BITS) + 1."""
    last, row = indptr.shape[0] - 1, 0
    for g in range(groups.shape[0]):
        begin = g << GROUP_BITS
        first = np.int64(indptr[begin])
        if is_long[g]:
            for j in range(GROUP + 1):
                longs[row, j] = indptr[min(begin + j, last)]
            first = np.int64(LONG + row)
            row += 1
        else:
            for v in range(begin, min(begin + GROUP, last)):
                groups[g, 4 + v - begin] = indptr[v + 1] - indptr[v]
        for i in range(4):
            groups[g, i] = (first >> (8 * i)) & 255

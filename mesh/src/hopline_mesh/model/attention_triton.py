"""The layer's attention as one Triton kernel: scores, softmax and weighted sum, no array of edges between.

One program for each node. It walks the node's list in blocks and keeps a running maximum, sum and row for
each head (the online softmax of Milakov and Gimelshein, 2018), so that no list is too long. On the CPU
`lanes.attend_4x32` computes the same. Wants Triton, which comes with PyTorch's builds for CUDA.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

#: Entries that a program looks at together, and its warps: the fastest of twelve (docs/log.md).
BLOCK, WARPS = 32, 2


@triton.jit
def attend_kernel(  # type: ignore[no-untyped-def]  # Triton reads annotations as its own
    source, target, attention, indptr, others, edges, e, edge_weight, own, bias, out,
    d_edge, slope,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, HEADS_2: tl.constexpr, CHANNELS_2: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One node's row: leaky(softmax-weighted sum of source rows + own + bias).

    `source`, `target`, `own`, `out`: float32 [n, HEADS * CHANNELS]; `attention`, `bias`: one such row;
    `edge_weight`: d_edge such rows; `indptr`, `others`, `edges`: int32 lists; `e`: float32 [edges, d_edge].
    HEADS_2, CHANNELS_2: HEADS and CHANNELS or the next power of two, as Triton's blocks have it.
    """
    i = tl.program_id(0).to(tl.int64)
    width: tl.constexpr = HEADS * CHANNELS
    head, channel = tl.arange(0, HEADS_2)[:, None], tl.arange(0, CHANNELS_2)[None, :]
    place = head * CHANNELS + channel
    inside = (head < HEADS) & (channel < CHANNELS)
    listener = tl.load(target + i * width + place, mask=inside, other=0.0)
    factors = tl.load(attention + place, mask=inside, other=0.0)
    begin = tl.load(indptr + i)
    end = tl.load(indptr + i + 1)
    highest = tl.full((HEADS_2,), -3.0e38, tl.float32)
    total = tl.zeros((HEADS_2,), tl.float32)
    sums = tl.zeros((HEADS_2, CHANNELS_2), tl.float32)
    for at in range(begin, end, BLOCK):
        entry = at + tl.arange(0, BLOCK)
        there = entry < end
        j = tl.load(others + entry, mask=there, other=0).to(tl.int64)
        edge = tl.load(edges + entry, mask=there, other=0).to(tl.int64)
        shown = there[:, None, None] & inside[None, :, :]
        rows = tl.load(source + j[:, None, None] * width + place[None, :, :], mask=shown, other=0.0)
        mixed = rows + listener[None, :, :]
        for q in range(d_edge):
            number = tl.load(e + edge * d_edge + q, mask=there, other=0.0)
            weight = tl.load(edge_weight + q * width + place, mask=inside, other=0.0)
            mixed += number[:, None, None] * weight[None, :, :]
        mixed = tl.where(mixed > 0, mixed, 0.2 * mixed)
        scores = tl.sum(mixed * factors[None, :, :], axis=2)
        scores = tl.where(there[:, None], scores, -3.0e38)
        now = tl.maximum(highest, tl.max(scores, axis=0))
        shrink = tl.exp(highest - now)
        shares = tl.where(there[:, None], tl.exp(scores - now[None, :]), 0.0)
        total = total * shrink + tl.sum(shares, axis=0)
        sums = sums * shrink[:, None] + tl.sum(shares[:, :, None] * rows, axis=0)
        highest = now
    result = sums / tl.maximum(total, 1e-30)[:, None]
    result += tl.load(own + i * width + place, mask=inside, other=0.0)
    result += tl.load(bias + place, mask=inside, other=0.0)
    result = tl.where(result > 0, result, slope * result)
    tl.store(out + i * width + place, result, mask=inside)


def attend(
    source: Any, target: Any, attention: Any, lists: tuple[Any, Any, Any], e: Any, edge_weight: Any,
    own: Any, bias: Any, slope: float, out: Any,
) -> None:  # fmt: skip
    """Launch the kernel for all rows of `out`; tensors on one device, contiguous."""
    attend_kernel[(out.shape[0],)](
        source, target, attention, *lists, e, edge_weight, own, bias, out, e.shape[1], slope,
        **_sizes(*attention.shape), num_warps=WARPS,
    )  # fmt: skip


def _sizes(heads: int, channels: int) -> dict[str, int]:
    return {
        "HEADS": heads,
        "CHANNELS": channels,
        "HEADS_2": triton.next_power_of_2(heads),
        "CHANNELS_2": triton.next_power_of_2(channels),
        "BLOCK": BLOCK,
    }

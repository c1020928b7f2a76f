"""The layer's attention as one Triton kernel: scores, softmax and weighted sum, no array of edges between.

One program for each node. It walks the node's list in blocks and keeps a running maximum, sum and row for
each head (the online softmax of Milakov and Gimelshein, 2018), so that no list is too long. On the CPU
`lanes.attend_4x32` computes the same. Wants Triton, which comes with PyTorch's builds for CUDA.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

#: Entries that a program looks at together.
BLOCK = 16


@triton.jit
def attend_kernel(  # type: ignore[no-untyped-def]  # Triton reads annotations as its own
    source, target, attention, indptr, others, edges, e, edge_weight, own, bias, out,
    d_edge, slope,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One node's row: leaky(softmax-weighted sum of source rows + own + bias).

    `source`, `target`, `own`, `out`: float32 [n, HEADS * CHANNELS]; `attention`, `bias`: one such row;
    `edge_weight`: d_edge such rows; `indptr`, `others`, `edges`: int32 lists; `e`: float32 [edges, d_edge].
    """
    i = tl.program_id(0).to(tl.int64)
    width: tl.constexpr = HEADS * CHANNELS
    place = tl.arange(0, HEADS)[:, None] * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    listener = tl.load(target + i * width + place)
    factors = tl.load(attention + place)
    begin = tl.load(indptr + i)
    end = tl.load(indptr + i + 1)
    highest = tl.full((HEADS,), -3.0e38, tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    sums = tl.zeros((HEADS, CHANNELS), tl.float32)
    for at in range(begin, end, BLOCK):
        entry = at + tl.arange(0, BLOCK)
        there = entry < end
        j = tl.load(others + entry, mask=there, other=0).to(tl.int64)
        edge = tl.load(edges + entry, mask=there, other=0).to(tl.int64)
        rows = tl.load(
            source + j[:, None, None] * width + place[None, :, :], mask=there[:, None, None], other=0.0
        )
        mixed = rows + listener[None, :, :]
        for q in range(d_edge):
            number = tl.load(e + edge * d_edge + q, mask=there, other=0.0)
            mixed += number[:, None, None] * tl.load(edge_weight + q * width + place)[None, :, :]
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
    result += tl.load(own + i * width + place) + tl.load(bias + place)
    result = tl.where(result > 0, result, slope * result)
    tl.store(out + i * width + place, result)


def attend(
    source: Any, target: Any, attention: Any, lists: tuple[Any, Any, Any], e: Any, edge_weight: Any,
    own: Any, bias: Any, slope: float, out: Any,
) -> None:  # fmt: skip
    """Launch the kernel for all rows of `out`; tensors on one device, contiguous."""
    heads, channels = attention.shape
    attend_kernel[(out.shape[0],)](
        source, target, attention, *lists, e, edge_weight, own, bias, out, e.shape[1], slope,
        HEADS=heads, CHANNELS=channels, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip


def compile_ahead(heads: int, channels: int, capability: int) -> Any:
    """Compile for a GPU that may be missing, into Triton's cache (TRITON_CACHE_DIR).

    For images: a first launch then uses the cache, if Triton specialises the launch in the same way.

    Args:
        capability: of the GPU, such as 80 or 90.

    Returns: Triton's compiled kernel.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    pointers = ("source", "target", "attention", "e", "edge_weight", "own", "bias", "out")
    signature = dict.fromkeys(attend_kernel.arg_names, "constexpr")
    signature |= dict.fromkeys(pointers, "*fp32")
    signature |= dict.fromkeys(("indptr", "others", "edges"), "*i32")
    signature |= {"d_edge": "i32", "slope": "fp32"}
    constants = {"HEADS": heads, "CHANNELS": channels, "BLOCK": BLOCK}
    names = attend_kernel.arg_names
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in (*pointers, "indptr", "others")}
    source = ASTSource(attend_kernel, signature, constants, aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})

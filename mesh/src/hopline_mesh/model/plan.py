"""Where everything of one pass lies: places in an int64 array of addresses and counts.

One array instead of thirty arguments: compiled code takes it in a microsecond, and a second thread can read
it. Knows numbers of places only.
"""

from __future__ import annotations

(
    NUM_NODES, NUM_EDGES, NUM_LAYERS, PHASE_BITS, ROW_PIECE, EDGE_PIECE, SCRATCH_BYTES,
    D_IN, D_TEMPORAL, D_EDGE, D_EDGE_TEMPORAL, D_OUT, D_DECODER, HEADS, CHANNELS,
    OUT_BYTES, DECODER_BYTES, NODE_BYTES, EDGE_BYTES, OWN_INPUTS, SHARED, EDGE_LAYERS,
    X, H, E, G, MASK, SOURCES, TARGETS, SCRATCH,
    W_OWN, W_OWN_TEMPORAL, W_OUT, B_OUT, W_LINK, W_CALLER, B_CALLER, W_CALLEE, W_HIDDEN, B_HIDDEN,
    W_NODES, B_NODES, W_EDGE_TEMPORAL, W_EDGES, B_EDGES, LINK_BIAS, NOTHING,
    Z, QUERY, CALLER, CALLEE, NODE_HIDDEN, NODE_OUT, EDGE_OUT, LINKS, HALVES, ROUNDED_BYTES, USUAL_EDGE,
    ROUNDED_TEMPORAL, EDGE_HALVES, WITH_LINKS, EIGHT_BITS,
) = range(62)  # fmt: skip

#: Where the first layer's own places begin, and how many each layer has.
LAYERS, LAYER_PLACES = 64, 22
#: Within a layer's places: its lists, its rows, its weights.
(
    INDPTR, OTHERS, EDGES, SOURCE_ROWS, TARGET_ROWS, OWN_ROWS, RESULT_ROWS,
    W_SOURCE, B_SOURCE, W_TARGET, B_TARGET, W_TEMPORAL, ATTENTION, W_EDGE, BIAS, EDGE_START,
    LINEAR_ROWS, EDGE_LINEAR, SOURCE_SCALES, SOURCE_START, TARGET_SCALES, TARGET_START,
) = range(22)  # fmt: skip

#: Phases of a pass in addition to its layers 1 to L: 0 is the first products; these follow the layers.
DECODE_NODES, DECODE_EDGES = 1, 2
#: How many phases there are in addition to the layers.
PHASES_BESIDE = 3

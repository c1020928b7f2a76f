"""`attend` in plain NumPy, operation by operation in float32.

Sums over the channels of a head may be added in another order, and the exponential differ in its last bit.
"""

from __future__ import annotations

import numpy as np

F = np.float32


def leaky(z, slope):
    return np.maximum(z, F(0)) + F(slope) * np.minimum(z, F(0))


def scores(attention, vector, edge, row, query, attr):
    heads, channels, width = attention.heads, attention.channels, attention.heads * attention.channels
    if attention.shared:
        row = np.tile(row[:channels], heads)
    if attention.kind == "gat":
        if attention.shared:
            found = (row * vector).reshape(heads, channels).sum(axis=1)
            own_vector = np.frombuffer(attention.own_vector, F)
            if len(query):
                found += (own_vector.reshape(heads, -1) * query).sum(axis=1)
        else:
            found = row[width : width + heads].copy()
            if len(query):
                found += query[:heads]
        for k, value in enumerate(attr):
            found += value * edge[k]
        return leaky(found, attention.slope)
    if attention.kind == "gatv2":
        keys = row[:width] + query[:width]
        for k, value in enumerate(attr):
            keys += value * edge[k]
        products = leaky(keys, attention.slope) * vector
    else:
        products = row[:width] * query[:width]
    found = products.reshape(heads, channels).sum(axis=1)
    if attention.kind == "transformer":
        for h in range(heads):
            for k, value in enumerate(attr):
                found[h] += value * query[width + h * len(attr) + k]
    return found


def attended(attention, rows_of, query, loop_row=None):
    """One destination.

    Args:
        rows_of: (row, attributes) of each neighbour, in order, without self-loops.
        query: the query row. loop_row: the destination's own row, where it attends to itself.
    """
    heads, channels, width = attention.heads, attention.channels, attention.heads * attention.channels
    vector, edge, fill_row = (
        np.frombuffer(b, F) for b in (attention.vector, attention.edge, attention.fill_row)
    )
    edge = edge.reshape(attention.num_attr, -1) if len(edge) else edge
    edges = list(rows_of)
    if loop_row is not None:
        of_loop = np.zeros(attention.num_attr, F)
        for _, attr in edges:
            of_loop += attr
        if attention.fill == "row":
            of_loop = fill_row
        elif attention.fill == "mean" and len(edges) > 1:
            of_loop = of_loop / F(len(edges))
        edges.append((loop_row, of_loop))
    extra = attention.num_attr if attention.kind == "transformer" else 0
    first = width if attention.kind == "transformer" and not attention.shared else 0
    out, more = np.zeros((heads, channels), F), np.zeros((heads, extra), F)
    top, norm = np.full(heads, -np.inf, F), np.zeros(heads, F)
    for row, attr in edges:
        found = scores(attention, vector, edge, row, query, attr)
        if attention.shared:
            values = np.tile(row[:channels], heads).reshape(heads, channels)
        else:
            values = row[first : first + width].reshape(heads, channels)
        for h in range(heads):
            highest = max(top[h], found[h])
            scale, weight = np.exp(top[h] - highest), np.exp(found[h] - highest)
            top[h] = highest
            norm[h] = norm[h] * scale + weight
            out[h] = out[h] * scale + weight * values[h]
            more[h] = more[h] * scale + weight * attr[:extra]
    with np.errstate(divide="ignore"):
        scale = np.where(norm != 0, F(1) / norm, F(0)).astype(F)[:, None]
    return np.concatenate([(out * scale).ravel(), (more * scale).ravel()])

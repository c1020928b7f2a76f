"""Keyed neighbour sampling: a pure function of the snapshot and a key, never of a random stream."""

from hopline.sampling.keyed import Block, BlockBuffers, Sampler, layer_key

__all__ = ["Block", "BlockBuffers", "Sampler", "layer_key"]

"""Keyed neighbour sampling: a pure function of the snapshot and a key, without a random stream."""

from hopline.sampling.keyed import Block, BlockBuffers, Sampler, layer_key

__all__ = ["Block", "BlockBuffers", "Sampler", "layer_key"]

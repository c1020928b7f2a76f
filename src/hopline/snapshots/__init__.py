"""Snapshots at an address: a graph, its features and precomputed answers, published and fetched as a unit.

<address>/
    latest.json             the pointer: which snapshot is the newest
    manifests/<id>.json     the files of a snapshot with their hashes; the id is the hash of this file
    objects/<sha256>        files by content: what two snapshots have in common lies here once
"""

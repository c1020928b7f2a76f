"""Fuzzing harnesses: one module for each kind of bytes that come from outside.

A harness has `check(data)`, which raises (`AssertionError`, or whatever the parser should not have raised)
where something is wrong. Its modules below are instrumented, so that inputs that reach new code are kept.
"""

from __future__ import annotations

#: Imported before anything is instrumented: instrumented functions cannot be compiled (numba).
COMPILED = ("hopline.transports.json_scan", "hopline.transports.proto_scan")
#: Name -> prefixes of the modules whose coverage guides the search.
HARNESSES: dict[str, tuple[str, ...]] = {
    "http1": ("hopline.transports",),
    "http2": ("hopline.transports",),
    "http2_head": ("turnserve.http2.head", "hpack"),
    "routes": ("hopline.transports",),
    "score_json": ("hopline.transports", "hopline.json_faults"),
    "oip_json": ("hopline.transports", "hopline.json_faults"),
    "openai_json": ("hopline.transports", "hopline_generate.request", "hopline.json_faults"),
    "tensors": ("hopline.transports",),
    "protobuf": ("hopline.transports",),
    "repository_json": ("hopline.transports", "hopline.rollout.rollout", "hopline.rollout.gates"),
    "arrow_events": ("hopline.events",),
    "json_events": ("hopline.events", "hopline.json_faults"),
    "broker_messages": ("hopline.transports",),
    "wal_segments": ("hopline.graph.live.segment", "hopline.graph.live.codec", "hopline.graph.live.codec"),
    "client_answers": ("hopline.client",),
    "state_files": (
        *("hopline.graph.live.manifest", "hopline.graph.storage", "hopline_mesh.state.segment"),
        *("hopline.artifact", "hopline.jobs.batch.journal"),
    ),
    "gguf": ("hopline_generate.gguf",),
    "lifecycle_state": ("hopline.rollout.state",),
    "process_wires": ("hopline.live.wire", "hopline_stores.prefetch.wire", "hopline.process.wire"),
    "model_wire": ("hopline.isolated.wire", "hopline.process.wire"),
}

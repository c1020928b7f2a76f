"""Every setting of a server, in one tree of frozen dataclasses.

To add a setting, add one line to a section: the file, the environment, the docs table and `hopline config
show` follow from it (`reader.py`). This file is long because all settings are in it.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hopline.config.setting import setting
from hopline.config.values import apply, flags, flatten
from hopline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Addresses, worker processes and limits of connections."""

    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for all interfaces")
    hosts: tuple[str, ...] = setting(
        (),
        "without authentication: names that callers may use besides addresses, localhost and names without"
        " a dot; .example.com is all names below it, * is any name",
    )
    http_port: int = setting(8700, "HTTP port; 0 picks a free one", minimum=0, maximum=65535)
    grpc_port: int = setting(
        8701, "gRPC port; 0 picks a free one, -1 turns gRPC off", minimum=-1, maximum=65535
    )
    workers: int = setting(
        1,
        "worker processes, which share the ports; auto: as many as the process has CPUs (its quota, rounded"
        " down), divided by compute.threads",
        minimum=1,
        maximum=1024,
        auto=True,
    )
    worker_hang_s: float = setting(
        60.0,
        "with several workers: a worker whose event loop has not turned for this time is killed and started"
        " again; 0: never",
        minimum=0,
    )
    max_body_bytes: int = setting(64 * 2**20, "largest request body, after decompression", minimum=1)
    max_pending_bytes: int = setting(
        0,
        "memory of a worker for request bodies and answers above 64 KiB that wait, of all connections;"
        " requests beyond it are refused with 503; 0: 32 MiB more than server.max_body_bytes",
        minimum=0,
    )
    keep_alive_timeout_s: float = setting(75.0, "an idle connection is closed after this time", minimum=0)
    read_timeout_s: float = setting(
        30.0,
        "time in which a request must arrive, a TLS handshake be complete, and 64 KiB of an answer, or all"
        " of it, be taken",
        minimum=0.1,
    )
    spin_us: float = setting(
        100.0,
        "an HTTP worker polls this long for the next request where that pays; 0 sleeps immediately",
        minimum=0,
        maximum=10_000,
    )
    drain_delay_s: float = setting(
        0.2, "after SIGTERM, keep serving this long while not ready and closing connections", minimum=0
    )
    drain_timeout_s: float = setting(30.0, "after that, time for admitted requests to finish", minimum=0)
    grpc_connection_age_s: float = setting(
        10.0,
        "a gRPC client is asked to reconnect after this time, and may then reach another worker",
        minimum=0.1,
    )
    backlog: int = setting(2048, "connections that may wait to be accepted", minimum=1)
    health_route: str = setting("", "a further path that answers as /readyz, such as SageMaker's /ping")
    predict_route: str = setting(
        "", "a further path that scores the only model, such as SageMaker's /invocations"
    )


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Limits of one request."""

    max_nodes_per_request: int = setting(4096, "nodes, inline nodes or pairs in one request", minimum=1)
    max_inline_neighbors: int = setting(10_000, "neighbour ids of one inline node", minimum=0)
    max_request_bytes: int = setting(
        1024 * 2**20,
        "memory for all that one request reads, with the neighbours of all hops; checked before reading",
        minimum=2**20,
        memory_share=1 / 4,
    )
    default_timeout_ms: float = setting(30_000.0, "deadline of a request that sets none", minimum=0.001)
    max_timeout_ms: float = setting(300_000.0, "longest deadline that a request may set", minimum=0.001)


@dataclass(frozen=True, slots=True)
class BatchingConfig:
    """Dynamic batching of waiting requests."""

    max_rows: int = setting(4096, "most rows of one batch, as predicted", minimum=1)
    max_bytes: int = setting(
        256 * 2**20, "most working memory of one batch, as predicted", minimum=1, memory_share=1 / 8
    )
    queue_delay_ms: float = setting(
        0.0, "how long a request waits for others to share its batch; 0 batches what is queued", minimum=0
    )
    max_queue_ms: float = setting(
        2000.0, "predicted CPU time of queued requests beyond which new ones are refused", minimum=0.001
    )
    max_queue_rows: int = setting(
        0, "predicted rows of queued requests beyond which new ones are refused; 0: no limit", minimum=0
    )


@dataclass(frozen=True, slots=True)
class StateCacheConfig:
    """The state cache: rows of hidden states that later requests read instead of computing them."""

    memory_bytes: int = setting(
        256 * 2**20, "memory of the state cache; 0 turns it off", minimum=0, memory_share=1 / 8
    )


@dataclass(frozen=True, slots=True)
class PrecomputedConfig:
    """Precomputed answers: files of `hopline batch` whose rows are read instead of computed."""

    file: tuple[str, ...] = setting((), "files that `hopline batch` wrote, one for each model")
    stale: Literal["refuse", "compute", "serve"] = setting(
        "refuse",
        "a file that was computed on another graph version: refuse to load the model, compute instead, or "
        "serve its rows and report `stale_row` in responses",
    )
    ttl_s: float = setting(0.0, "rows older than this are computed instead; 0: any age", minimum=0)


@dataclass(frozen=True, slots=True)
class ComputeConfig:
    """Place and way in which models run."""

    inline_cost_us: float = setting(
        5000.0, "batches predicted to cost less run on the event loop, others on a thread", minimum=0
    )
    slice_us: float = setting(
        500.0,
        "as inline_cost_us, and the longest batch on the loop, while several models have requests",
        minimum=1,
    )
    threads: int = setting(
        1,
        "threads of the model runtime in each worker; above 1, the last bit of an answer may depend on "
        "the other requests of its batch, where the model has Elu, Log, Softplus or Mish",
        minimum=1,
    )
    device: Literal["cpu", "cuda", "tensorrt"] = setting(
        "cpu", "where models run; refused if ONNX Runtime does not support it; no fallback to the CPU"
    )


@dataclass(frozen=True, slots=True)
class GraphConfig:
    """The served graph."""

    path: Path | str | None = setting(
        None,
        "folder written by `hopline graph build`, or address of published snapshots (s3://, gs://, ...)",
    )
    memory: Literal["auto", "mapped", "huge", "disk"] = setting(
        "auto",
        "mapped: shared by all workers; huge: copied into huge pages of each worker, faster to read; disk: "
        "for a graph larger than memory, whose edges and features are read by number, on threads where "
        "they are not in memory; auto: huge if there is one worker, else mapped",
    )
    store: str = setting(
        "",
        "URL of the graph store that holds the edges instead of a folder: redis+cluster://host:6379; "
        "written by `hopline graph push`",
    )
    store_version: str = setting("", "graph version to serve from the store; empty: the one pushed last")
    cache: Path | None = setting(
        None, "folder for what the host holds of a graph in a store; empty: ~/.cache/hopline/graphs"
    )
    fetch_timeout_ms: float = setting(
        1000.0,
        "longest time that a request waits for edges of one hop, with retries, before it fails with 503",
        minimum=1,
    )


@dataclass(frozen=True, slots=True)
class SnapshotsConfig:
    """Snapshots at addresses: copies on this host, and new ones that are taken up."""

    poll_s: float = setting(
        0.0,
        "how often the pointer at graph.path is read; a new snapshot is rolled out; 0: only on request",
        minimum=0,
    )
    rollout: Literal["canary", "blue_green"] = setting(
        "canary", "kind of the rollout of a new snapshot that the pointer names"
    )
    min_step_s: float = setting(60.0, "shortest duration of each step of that rollout", minimum=0)
    preflight: int = setting(
        100, "copies of requests that a new snapshot must answer before it serves callers", minimum=0
    )
    gates: tuple[str, ...] = setting(
        (), "gates of that rollout, such as max_disagreement=0.2; others keep their defaults"
    )
    cache: Path | None = setting(
        None, "folder for copies of snapshots, on a local disk; empty: ~/.cache/hopline/snapshots"
    )
    cache_bytes: int = setting(
        0, "most bytes of copies; 0: what the disk has, less 5 % or 1 GiB, whichever is less", minimum=0
    )
    keep: int = setting(1, "snapshots that stay on this host though nothing uses them", minimum=0)


@dataclass(frozen=True, slots=True)
class FeaturesConfig:
    """Features in a feature store outside the graph."""

    store: str = setting("", "URL of the feature store, such as redis://host:6379/0; empty: the graph")
    cache: str = setting("", "URL of a faster store in front of it (L2 cache), written by Hopline")
    groups: tuple[str, ...] = setting(
        (), 'feature groups as "<node type>=<group>"; default: the group with the name of the node type'
    )
    fetch_timeout_ms: float = setting(
        20.0,
        "longest time that a request waits for feature rows, for each 256 KiB of them, before it "
        "continues without",
        minimum=0.1,
    )
    breaker_failure_share: float = setting(
        0.5, "share of failed calls at which the circuit breaker of a store opens", minimum=0.01, maximum=1
    )
    breaker_pause_ms: float = setting(250.0, "time until an open breaker probes the store", minimum=1)
    retry_share: float = setting(
        0.1, "retries allowed, as a share of all calls of the last 10 s", minimum=0, maximum=1
    )
    negative_ttl_ms: float = setting(
        500.0, "how long a row that the store does not have is not requested again", minimum=0
    )
    schema_recheck_s: float = setting(
        30.0, "seconds between comparisons of the store's schema with the graph's", minimum=1
    )
    memory_bytes: int = setting(
        256 * 2**20, "memory of the L1 feature cache, shared by all workers", minimum=1, memory_share=1 / 8
    )
    ttl_s: float = setting(600.0, "age at which a cached row is fetched again", minimum=0.001)
    ttls: tuple[str, ...] = setting((), 'other ages for some groups, as "<group>=<seconds>"')
    prewarm_nodes: int = setting(
        0, "most-read nodes to fetch and compute before the server is ready", minimum=0
    )
    prewarm_file: Path | None = setting(
        None, "external ids to prewarm instead, one a line, most requested first"
    )
    shared_file: Path | None = setting(
        None, "file in memory (/dev/shm/...) of the L1 feature cache; shared with a prefetcher and restarts"
    )
    prefetcher: Path | None = setting(
        None, "Unix socket of `hopline prefetch`, which fetches for all workers; empty: each worker fetches"
    )


@dataclass(frozen=True, slots=True)
class ModelsConfig:
    """The served models."""

    repository: Path | str | None = setting(
        None, "folder of <model>/<version> artifacts, or a URL of one (s3://, gs://, ...)"
    )
    cache: Path | None = setting(
        None, "folder for copies of versions from a URL; empty: ~/.cache/hopline/models"
    )
    names: tuple[str, ...] = setting((), "models to load; empty: all of the repository")
    pinned: tuple[str, ...] = setting(
        (),
        "versions that serve at the first start, as <model>=<version>; empty: the newest. What was loaded "
        "or rolled back since (models.state) goes before it",
    )
    required: Literal["all", "any", "none"] = setting(
        "any",
        "which models must be able to serve at start, else the server exits; the others are reported. With "
        "none, a server starts also while its stores are down: /readyz is 503 until a model can serve",
    )
    state: Path | str | None = setting(
        None,
        "folder that stores requested versions and rollouts, so that a restart resumes them, or redis:// "
        "URL that all hosts of a fleet share; empty: .hopline in the repository if writable",
    )


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """TLS for HTTP and gRPC; the first two files or neither. Changed files are loaded within a second."""

    cert_file: Path | None = setting(None, "PEM certificate chain")
    key_file: Path | None = setting(None, "PEM private key")
    client_ca_file: Path | None = setting(
        None, "PEM certificates of the authorities whose client certificates identify clients"
    )
    client_certificates: Literal["optional", "required"] = setting(
        "optional",
        "with client_ca_file: optional lets clients without a certificate send a key or token instead; "
        "required refuses their connections, also those of probes",
    )

    @property
    def enabled(self) -> bool:
        """True if connections are encrypted."""
        return self.cert_file is not None


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """Authentication; off unless a clients file or keys of tokens are set."""

    clients_file: Path | None = setting(
        None, "TOML file of clients: hashed API keys, permissions, rates; reloaded when it changes"
    )
    allow_anonymous: bool = setting(
        False, "accept requests without credentials, even if server.host is not a loopback address"
    )
    open_metrics: bool = setting(False, "/metrics needs no permission")
    rate_per_s: float = setting(
        0.0, "requests per second of a client whose entry or token sets no rate; 0: no limit", minimum=0
    )
    burst: int = setting(
        0, "most requests in one burst; 0: one second's worth", minimum=0, maximum=1_000_000
    )
    jwt_issuer: str = setting("", "`iss` that tokens must have")
    jwt_audience: str = setting("", "`aud` that tokens must have or contain")
    jwt_key_file: Path | None = setting(
        None, "PEM public key of the issuer, or a file with the secret of HS256 (at least 32 bytes)"
    )
    jwt_jwks_file: Path | None = setting(None, "JSON Web Key Set of the issuer instead, chosen by `kid`")
    jwt_jwks_url: str = setting("", "https URL of the key set instead; fetched again, see jwt_refresh_s")
    jwt_discovery: bool = setting(
        False, "find the key set by OpenID Connect Discovery at jwt_issuer, an https URL"
    )
    jwt_refresh_s: float = setting(
        300.0,
        "seconds between fetches of a key set from a URL; an unknown key id fetches sooner",
        minimum=5,
    )
    jwt_ca_file: Path | None = setting(
        None, "PEM certificates that the URL of the key set is trusted by; empty: those of the system"
    )
    jwt_algorithms: tuple[str, ...] = setting(
        ("RS256", "ES256", "EdDSA"), "accepted algorithms; the key must be of the algorithm's type"
    )
    jwt_leeway_s: float = setting(
        5.0, "clock difference that is tolerated in a token's times", minimum=0, maximum=300
    )

    @property
    def tokens(self) -> bool:
        """True if JSON Web Tokens are accepted."""
        return self.jwt_key_file is not None or self.jwt_jwks_file is not None or self.is_remote

    @property
    def is_remote(self) -> bool:
        """True if the keys of tokens are at a URL."""
        return bool(self.jwt_jwks_url) or self.jwt_discovery

    @property
    def enabled(self) -> bool:
        """True if clients authenticate with keys or tokens; see also `Config.authenticates`."""
        return self.clients_file is not None or self.tokens


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Logging of the server process."""

    level: Literal["debug", "info", "warning", "error"] = setting("info", "lowest level that is written")
    format: Literal["text", "json"] = setting("text", "text lines for people, or JSON lines for machines")
    access: bool = setting(False, "write one JSON line for each request to a model")


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """OpenTelemetry traces of requests."""

    endpoint: str = setting(
        "", "OTLP/HTTP receiver, such as http://127.0.0.1:4318, or console; empty: no traces"
    )
    sample_share: float = setting(
        0.01, "share of requests that are traced if the caller sends no trace", minimum=0, maximum=1
    )
    service_name: str = setting("hopline", "service.name of the traces")
    max_pending: int = setting(5000, "traces that may wait to be sent; those beyond are dropped", minimum=1)


@dataclass(frozen=True, slots=True)
class CostConfig:
    """Prices, for the cost of requests by model."""

    cpu_hour: float = setting(0.0, "price of one CPU core for an hour; 0: not counted", minimum=0)
    gpu_hour: float = setting(0.0, "price of one GPU for an hour; 0: not counted", minimum=0)
    currency: str = setting("USD", "label of the prices")


@dataclass(frozen=True, slots=True)
class PredictionLogConfig:
    """The prediction log: files that record every answer."""

    path: Path | None = setting(None, "folder of the prediction log of all workers; empty: no log")
    format: Literal["jsonl", "parquet"] = setting(
        "jsonl", "format of finished files; the file that is being written is always JSON Lines"
    )
    rotate_bytes: int = setting(64 * 2**20, "size of a worker's file at which it is finished", minimum=4096)
    rotate_s: float = setting(3600.0, "age of a worker's file at which it is finished", minimum=0.01)
    keep_bytes: int = setting(
        4 * 2**30, "total size; the oldest finished files beyond are deleted", minimum=8192
    )
    inputs: Literal["all", "sample", "none"] = setting(
        "all", "requests whose inputs are logged; an answer without inputs cannot be replayed"
    )
    input_share: float = setting(
        0.01, 'share of requests whose inputs are logged with "sample"', minimum=0, maximum=1
    )
    tensors_share: float = setting(
        0.0, "share of requests logged with their inputs as the model reads them", minimum=0, maximum=1
    )
    max_pending: int = setting(
        16_384, "requests of a worker that may wait to be written; those beyond are dropped", minimum=1
    )
    max_pending_bytes: int = setting(
        64 * 2**20, "bytes of a worker that may wait, estimated from what was written", minimum=4096
    )


@dataclass(frozen=True, slots=True)
class DriftConfig:
    """Drift of requests, answers and neighbourhoods from a reference."""

    enabled: bool = setting(False, "measure drift and raise alerts")
    path: Path | None = setting(None, "folder for references, windows and hourly scores of all workers")
    sample_per_s: float = setting(
        200.0, "requests of each version that each worker examines in a second", minimum=0.1
    )
    window_s: float = setting(
        3600.0, "length of the window that is compared; it moves by a sixth of its length", minimum=0.6
    )
    reference_size: int = setting(
        10_000, "examined rows that form a version's reference if none was given", minimum=50
    )
    watch: float = setting(0.1, "stability index, minus its value by chance, for level watch", minimum=0)
    alert: float = setting(0.25, "the same index for level alert, which raises an alert", minimum=0)
    consecutive_windows: int = setting(
        3, "windows in a row above a threshold that raise an alert, and below it that clear it", minimum=1
    )
    max_columns: int = setting(
        32, "most columns of a tabular model, or features of a node type, that are watched", minimum=0
    )
    columns: tuple[str, ...] = setting((), "columns to watch; empty: the first drift.max_columns")


@dataclass(frozen=True, slots=True)
class LiveConfig:
    """A graph that changes while it is served."""

    enabled: bool = setting(False, "accept changes to the graph from HTTP and from `hopline stream`")
    stream: str = setting(
        "",
        "address of the stream that all servers of a fleet follow, such as kafka://host:9092/edges; the "
        "graph's version is then named by its offset; empty: none",
    )
    dead_letters: str = setting(
        "", "address or file for events of live.stream that cannot be applied; empty: they are logged"
    )
    snapshots: str = setting(
        "",
        "folder or address that servers of a fleet share: a new server starts from its newest snapshot; "
        "empty: none",
    )
    catch_up_s: float = setting(
        60.0,
        "how long a new server takes no requests while the stream is not read or no writer answers",
        minimum=0,
    )
    min_version_wait_ms: float = setting(
        1000.0,
        "how long a request waits for its min_version; after that it is refused with 503, so that another "
        "server can answer it",
        minimum=0,
    )
    folder: Path | None = setting(
        None, "folder that stores the changes; default: the graph's folder with `.live` appended"
    )
    socket: Path | None = setting(
        None, "Unix socket on which the writer accepts changes; default: `writer.sock` in live.folder"
    )
    spare_nodes: int = setting(1_000_000, "space for new nodes of each type", minimum=0)
    spare_edges: int = setting(10_000_000, "space for new edges of each type", minimum=0)
    levels: int | None = setting(
        None,
        "message-passing layers of the deepest model in the state cache, plus one; default: those of the "
        "deepest model in the repository when the writer starts",
        minimum=1,
    )
    degrees: bool = setting(
        False, "track changed degrees of neighbours; without it the state cache excludes GCN models"
    )
    remembered_events: int = setting(
        1_000_000, "event ids that are remembered to recognise repeated events", minimum=1
    )
    snapshot_bytes: int = setting(
        256 * 2**20, "bytes of changes after which a new snapshot replaces them", minimum=1
    )
    snapshot_s: float = setting(3600.0, "time after which a new snapshot replaces the changes", minimum=1)
    stand_by_s: float = setting(
        10.0,
        "how long a starting server waits while another one still writes live.folder; 0: without limit",
        minimum=0,
    )
    nice: int = setting(
        5,
        "nice value of the writer and of `hopline stream`, which lowers their priority below the workers",
        minimum=0,
        maximum=19,
    )


@dataclass(frozen=True, slots=True)
class QueuesConfig:
    """Score requests from a message broker, in addition to HTTP and gRPC."""

    requests: str = setting(
        "", "address to read requests from, such as kafka://host:9092/score?group=hopline; empty: off"
    )
    results: str = setting("", "topic for answers to requests without a reply-to header; empty: none")
    dead_letters: str = setting(
        "", "topic for invalid messages, with the reason; empty: they are logged and not processed"
    )
    reply_prefix: str = setting(
        "", "required prefix of reply-to headers, other requests are refused; empty: no reply-to is allowed"
    )
    concurrency: int = setting(64, "requests that a worker processes at the same time", minimum=1)
    retry_s: float = setting(
        30.0,
        "how long a request that the server cannot accept is retried; also an answer that a caller's "
        "reply-to topic does not take",
        minimum=0,
    )
    max_deliveries: int = setting(
        5, "a message that was delivered more often becomes a dead letter; 0: no limit", minimum=0
    )


@dataclass(frozen=True, slots=True)
class GenerateConfig:
    """Generative models: the process of each version, which all workers share."""

    device: Literal["CPU", "GPU"] = setting("CPU", "device of openvino-genai")
    threads: int = setting(0, "threads of one step; 0: all CPUs", minimum=0)
    nice: int = setting(10, "niceness of the processes: scores of nodes go first", minimum=0, maximum=19)
    kv_tokens: int = setting(
        16_384,
        "tokens that the KV cache of a version has room for, of all running texts together",
        minimum=32,
    )
    max_running: int = setting(32, "texts of a version that run together", minimum=1)
    batch_tokens: int = setting(512, "most tokens of one step", minimum=1)
    prefix_caching: bool = setting(
        False,
        "keep KV blocks of ended texts for prompts that begin alike; requests with a seed are then refused",
    )
    max_queue_tokens: int = setting(
        65_536, "tokens of waiting texts beyond which new ones are refused", minimum=1
    )
    default_tokens: int = setting(512, "longest answer of a request that sets no max_tokens", minimum=1)
    tokens_per_minute: int = setting(
        0,
        "tokens of prompts and answers per minute of a client whose entry or token sets none, over all"
        " generative models; 0: no limit",
        minimum=0,
        maximum=1_000_000_000,
    )
    socket_folder: Path | None = setting(
        None, "folder for the sockets of the processes; not set: one in the folder for temporary files"
    )


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Internal settings that the supervisor passes to its workers."""

    index: int = setting(0, "index of this worker", internal=True)
    count: int = setting(1, "number of workers", internal=True)
    metrics_dir: str = setting(
        "", "folder in which workers write their metrics for each other", internal=True
    )
    state_cache_fd: int = setting(
        -1, "memfd of the state caches; -1: memory of this process", internal=True
    )
    rows_fd: int = setting(-1, "memfd of the L1 feature cache; -1: memory of this process", internal=True)
    live_memory: str = setting("", "address of the live graph's shared memory", internal=True)
    model_factory: str = setting(
        "", '"module:attribute" that opens models in separate processes; empty: the default', hidden=True
    )
    isolated: bool = setting(False, "whether this process runs a model for another one", internal=True)
    replaces: bool = setting(False, "whether all workers were ready before this one began", internal=True)


@dataclass(frozen=True, slots=True)
class Config:
    """All settings; see each section."""

    server: ServerConfig = field(default_factory=ServerConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    state_cache: StateCacheConfig = field(default_factory=StateCacheConfig)
    precomputed: PrecomputedConfig = field(default_factory=PrecomputedConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    graph: GraphConfig = field(default_factory=GraphConfig)
    snapshots: SnapshotsConfig = field(default_factory=SnapshotsConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    models: ModelsConfig = field(default_factory=ModelsConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    auth: AuthConfig = field(default_factory=AuthConfig)
    log: LogConfig = field(default_factory=LogConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)
    cost: CostConfig = field(default_factory=CostConfig)
    prediction_log: PredictionLogConfig = field(default_factory=PredictionLogConfig)
    drift: DriftConfig = field(default_factory=DriftConfig)
    live: LiveConfig = field(default_factory=LiveConfig)
    queues: QueuesConfig = field(default_factory=QueuesConfig)
    generate: GenerateConfig = field(default_factory=GenerateConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)

    @property
    def authenticates(self) -> bool:
        """True if clients must authenticate."""
        return self.auth.enabled or self.tls.client_ca_file is not None

    def replace(self, **settings: Any) -> Config:
        """A copy with other values; names are "section__key"."""
        changes = {name.replace("__", ".", 1): value for name, value in settings.items()}
        config = apply(self, flags(changes))
        check_tls(config)
        return config

    def to_json(self) -> str:
        """Every value as JSON; `Config.from_json` reads it (workers get their config so)."""
        return json.dumps(dataclasses.asdict(self), default=str)

    @staticmethod
    def from_json(text: str) -> Config:
        """The config that `to_json` wrote."""
        return apply(Config(), flatten(json.loads(text), "the supervisor"))


def check_tls(config: Config) -> None:
    """Check the files of `tls`.

    Raises: ConfigError: a file does not exist, or only one of the two is set.
    """
    for name, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
        path = getattr(config.tls, name)
        if path is None:
            continue
        if not path.is_file():
            raise ConfigError(f"tls.{name}: {str(path)!r} does not exist or is not a file")
        if getattr(config.tls, other) is None:
            raise ConfigError(f"tls.{other}: must be set together with tls.{name}")
    authority = config.tls.client_ca_file
    if authority is not None and not authority.is_file():
        raise ConfigError(f"tls.client_ca_file: {str(authority)!r} does not exist or is not a file")
    if authority is not None and not config.tls.enabled:
        raise ConfigError("tls.client_ca_file: also needs tls.cert_file and tls.key_file")
    if authority is None and config.tls.client_certificates == "required":
        raise ConfigError("tls.client_certificates: also needs tls.client_ca_file")

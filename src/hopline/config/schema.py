"""Every setting of a server, in one tree of frozen dataclasses.

To add a setting, add one line to a section: the file, the environment, the docs table and `hopline config
show` follow from it (`reader.py`).
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
    """Addresses, processes and the limits of connections."""

    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for all interfaces")
    http_port: int = setting(8700, "HTTP port; 0 picks a free one", minimum=0, maximum=65535)
    grpc_port: int = setting(
        8701, "gRPC port; 0 picks a free one, -1 turns gRPC off", minimum=-1, maximum=65535
    )
    workers: int = setting(1, "processes that share the ports", minimum=1, maximum=1024)
    max_body_bytes: int = setting(64 * 2**20, "largest request body, after decompression", minimum=1)
    max_pending_bytes: int = setting(
        0,
        "memory for request bodies above 64 KiB that are not answered yet, of all connections of a worker;"
        " what finds no room is refused with 503. 0 is four times server.max_body_bytes",
        minimum=0,
    )
    keep_alive_timeout_s: float = setting(75.0, "an idle connection is closed after this", minimum=0)
    read_timeout_s: float = setting(30.0, "a request must have arrived whole by then", minimum=0.1)
    spin_us: float = setting(
        100.0,
        "an HTTP worker waits awake so long for the next request, where that pays; 0 lets it sleep at once",
        minimum=0,
        maximum=10_000,
    )
    drain_delay_s: float = setting(
        0.2, "after SIGTERM: not ready and closing connections, but still serving, for so long", minimum=0
    )
    drain_timeout_s: float = setting(30.0, "then: how long admitted requests may take to finish", minimum=0)
    grpc_connection_age_s: float = setting(
        10.0,
        "a gRPC client is told to connect anew after this, with which it may meet another worker",
        minimum=0.1,
    )
    backlog: int = setting(2048, "connections that may wait to be accepted", minimum=1)
    health_route: str = setting("", "a further path that answers as /readyz, such as SageMaker's /ping")
    predict_route: str = setting(
        "", "a further path that scores the only model, such as SageMaker's /invocations"
    )


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """What one request may ask for."""

    max_nodes_per_request: int = setting(4096, "nodes, inline nodes or pairs in one request", minimum=1)
    max_inline_neighbors: int = setting(10_000, "neighbour ids of one inline node", minimum=0)
    max_request_bytes: int = setting(
        1024 * 2**20,
        "memory for what one request reads, the neighbours of all hops; more is refused before it is read",
        minimum=2**20,
        memory_share=1 / 4,
    )
    default_timeout_ms: float = setting(30_000.0, "deadline of a request that names none", minimum=0.001)
    max_timeout_ms: float = setting(300_000.0, "longest deadline that a request may name", minimum=0.001)


@dataclass(frozen=True, slots=True)
class BatchingConfig:
    """Dynamic batching of waiting requests."""

    max_rows: int = setting(4096, "predicted rows of one batch", minimum=1)
    max_bytes: int = setting(
        256 * 2**20, "predicted working memory of one batch", minimum=1, memory_share=1 / 8
    )
    queue_delay_ms: float = setting(0.0, "wait so long for company; 0 batches what is waiting", minimum=0)
    max_queue_ms: float = setting(
        2000.0, "predicted processor time waiting before requests are refused", minimum=0.001
    )
    max_queue_rows: int = setting(0, "the same in predicted rows; 0 is any number", minimum=0)


@dataclass(frozen=True, slots=True)
class TableConfig:
    """The embedding table."""

    memory_bytes: int = setting(
        256 * 2**20, "memory for rows kept between requests; 0 turns it off", minimum=0, memory_share=1 / 8
    )
    file: tuple[str, ...] = setting(
        (), "final rows computed by `hopline batch`, looked up instead of computed; one file for each model"
    )
    stale: Literal["refuse", "compute", "serve"] = setting(
        "refuse",
        "a table file of another graph version: do not load the model, use none of its rows, or use them "
        "and say so in answers (`stale_row`)",
    )
    ttl_s: float = setting(0.0, "rows of a table file that are older are computed; 0 is any age", minimum=0)
    pin_bytes: int = setting(
        0, "memory for rows of table files that shall never wait for a disk, in each worker", minimum=0
    )
    pin_file: Path | None = setting(
        None, "external ids whose rows these are, one a line; needed where a file is larger than pin_bytes"
    )


@dataclass(frozen=True, slots=True)
class ComputeConfig:
    """Where and how models run."""

    inline_cost_us: float = setting(
        5000.0, "batches predicted cheaper than this run on the event loop, others on a thread", minimum=0
    )
    slice_us: float = setting(
        500.0, "the same while several models are asked, and then the longest batch on the loop", minimum=1
    )
    threads: int = setting(1, "threads of the model runtime in each worker", minimum=1)
    device: Literal["cpu", "cuda", "tensorrt"] = setting(
        "cpu",
        "where models run; refused where ONNX Runtime or torch lacks it, never replaced by the processor",
    )
    compiled: Literal["auto", "never", "require"] = setting(
        "auto",
        "programs of `hopline package --compile`: auto runs the eager one where they do not fit the "
        "machine, require refuses the model then, never ignores them",
    )


@dataclass(frozen=True, slots=True)
class GraphConfig:
    """The graph that is served."""

    path: Path | None = setting(None, "folder written by `hopline graph build`")
    memory: Literal["auto", "mapped", "huge"] = setting(
        "auto",
        "mapped: shared by all workers; huge: copied into huge pages of each worker, faster to read; "
        "auto: huge for one worker",
    )


@dataclass(frozen=True, slots=True)
class FeaturesConfig:
    """Features that lie in a store beside the graph."""

    store: str = setting("", "URL of the feature store, such as redis://host:6379/0; empty: in the graph")
    cache: str = setting("", "URL of a faster store in front of it (L2), written by Hopline")
    groups: tuple[str, ...] = setting(
        (), 'feature groups as "<node type>=<group>"; a node type that is not named has a group of its name'
    )
    fetch_timeout_ms: float = setting(
        20.0, "longest that a request waits for rows before it does without", minimum=0.1
    )
    breaker_failure_share: float = setting(
        0.5, "share of failed calls at which a store is left alone for a while", minimum=0.01, maximum=1
    )
    breaker_pause_ms: float = setting(250.0, "until a store that was left alone is probed", minimum=1)
    retry_share: float = setting(
        0.1, "calls that may be tried again, as a share of all calls of the last 10 s", minimum=0, maximum=1
    )
    negative_ttl_ms: float = setting(
        500.0, "how long a row that the store does not have is not asked for again", minimum=0
    )
    schema_recheck_s: float = setting(
        30.0, "seconds between comparisons of the store's schema with the graph's", minimum=1
    )
    memory_bytes: int = setting(
        256 * 2**20, "memory for rows kept near (L1), shared by all workers", minimum=1, memory_share=1 / 8
    )
    ttl_s: float = setting(600.0, "age at which a kept row is fetched anew", minimum=0.001)
    ttls: tuple[str, ...] = setting((), 'other ages for some groups, as "<group>=<seconds>"')
    prewarm_nodes: int = setting(
        0, "before it is ready, the server fetches and computes so many of the most read nodes", minimum=0
    )
    prewarm_file: Path | None = setting(
        None, "external ids to prewarm instead, one a line, the most asked for first"
    )
    shared_file: Path | None = setting(
        None, "file in memory (/dev/shm/...) for the rows kept near; a prefetcher and restarts share it"
    )
    prefetcher: Path | None = setting(
        None, "Unix socket of `hopline prefetch`, which fetches for all workers; empty: each by itself"
    )


@dataclass(frozen=True, slots=True)
class ModelsConfig:
    """The models that are served."""

    repository: Path | str | None = setting(
        None, "folder of <model>/<version> artifacts, or a URL of one (s3://, gs://, ...)"
    )
    cache: Path | None = setting(
        None, "where copies of versions from a URL are kept; empty: ~/.cache/hopline/models"
    )
    names: tuple[str, ...] = setting((), "models to load; empty means all of the repository")
    require_all: bool = setting(
        False, "end at start unless every model can serve; else the others serve, and that one says why"
    )
    state: Path | None = setting(
        None,
        "folder for what was asked of versions and rollouts, which a restart takes up again; empty: "
        ".hopline in the repository, if that can be written",
    )


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """TLS for HTTP and gRPC; both files or neither."""

    cert_file: Path | None = setting(None, "PEM certificate chain")
    key_file: Path | None = setting(None, "PEM private key")

    @property
    def enabled(self) -> bool:
        """Whether connections are encrypted."""
        return self.cert_file is not None


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """Who may ask; off unless a clients file or the keys of tokens are set."""

    clients_file: Path | None = setting(
        None, "TOML file of clients: hashed API keys, permissions, rates; read anew when it changes"
    )
    allow_anonymous: bool = setting(
        False, "let everybody ask, also where server.host is not a loopback address"
    )
    open_metrics: bool = setting(False, "/metrics needs no permission")
    rate_per_s: float = setting(
        0.0, "requests a second of a client whose entry or token says nothing; 0 is no limit", minimum=0
    )
    burst: int = setting(
        0, "how many of them at once; 0 is one second's worth", minimum=0, maximum=1_000_000
    )
    jwt_issuer: str = setting("", "`iss` that tokens must have")
    jwt_audience: str = setting("", "`aud` that tokens must have or contain")
    jwt_key_file: Path | None = setting(
        None, "PEM public key of the issuer, or a file with the secret of HS256 (at least 32 bytes)"
    )
    jwt_jwks_file: Path | None = setting(None, "JSON Web Key Set of the issuer instead, chosen by `kid`")
    jwt_algorithms: tuple[str, ...] = setting(
        ("RS256", "ES256", "EdDSA"), "algorithms that are accepted, where the key is of their kind"
    )
    jwt_leeway_s: float = setting(
        5.0, "difference of clocks that is forgiven in a token's times", minimum=0, maximum=300
    )

    @property
    def tokens(self) -> bool:
        """Whether JSON Web Tokens are taken."""
        return self.jwt_key_file is not None or self.jwt_jwks_file is not None

    @property
    def enabled(self) -> bool:
        """Whether clients have to say who they are."""
        return self.clients_file is not None or self.tokens


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Logging of the server process."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "least severe level that is written"
    )
    format: Literal["text", "json"] = setting("text", "lines for people or for machines")
    access: bool = setting(False, "one JSON line for each request that a model took")


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """OpenTelemetry traces of requests."""

    endpoint: str = setting(
        "", "OTLP/HTTP receiver, such as http://127.0.0.1:4318, or console; empty: no traces"
    )
    sample_share: float = setting(
        0.01, "share of requests that are traced where the caller names no trace", minimum=0, maximum=1
    )
    service_name: str = setting("hopline", "service.name of the traces")
    max_pending: int = setting(5000, "traces that may wait to be sent; more are dropped", minimum=1)


@dataclass(frozen=True, slots=True)
class CostConfig:
    """Prices, for the cost of requests by model."""

    cpu_hour: float = setting(0.0, "price of an hour of one processor core; 0: not counted", minimum=0)
    gpu_hour: float = setting(0.0, "price of an hour of one GPU; 0: not counted", minimum=0)
    currency: str = setting("USD", "label of the prices")


@dataclass(frozen=True, slots=True)
class PredictionLogConfig:
    """What is kept of every answer, in files."""

    path: Path | None = setting(None, "folder of the prediction log, of all workers; empty: none is kept")
    format: Literal["jsonl", "jsonl.gz", "parquet"] = setting(
        "jsonl", "of finished files; the file that is being written is always JSON Lines"
    )
    rotate_bytes: int = setting(64 * 2**20, "a worker's file is finished at about this size", minimum=4096)
    rotate_s: float = setting(3600.0, "and at this age", minimum=0.01)
    keep_bytes: int = setting(4 * 2**30, "the oldest finished files beyond this are deleted", minimum=8192)
    inputs: Literal["all", "sample", "none"] = setting(
        "all", "which requests' inputs are kept; without them an answer cannot be replayed"
    )
    input_share: float = setting(
        0.01, 'share of requests whose inputs are kept with "sample"', minimum=0, maximum=1
    )
    tensors_share: float = setting(
        0.0, "share of requests kept with their inputs as the model sees them", minimum=0, maximum=1
    )
    max_pending: int = setting(
        16_384, "requests of a worker that may wait to be written; those beyond are dropped", minimum=1
    )
    max_pending_bytes: int = setting(
        64 * 2**20, "the same in bytes, as estimated from what was written", minimum=4096
    )


@dataclass(frozen=True, slots=True)
class DriftConfig:
    """Whether requests, answers and neighbourhoods are still those of a reference."""

    enabled: bool = setting(False, "watch drift, and raise alerts")
    path: Path | None = setting(None, "folder for references, windows and hourly scores; workers share it")
    sample_per_s: float = setting(
        200.0, "requests of each version that are looked at each second, in each worker", minimum=0.1
    )
    window_s: float = setting(
        3600.0, "length of the window that is compared; it moves by a sixth", minimum=0.6
    )
    reference_size: int = setting(
        10_000, "looked-at rows that make a version's reference, where none was given", minimum=50
    )
    watch: float = setting(0.1, "stability index, less what chance makes of it, to watch", minimum=0)
    alert: float = setting(0.25, "the same, to raise an alert", minimum=0)
    hold: int = setting(3, "windows in a row that it takes to rise, and to fall again", minimum=1)
    max_columns: int = setting(
        32, "columns of a table, or features of a node type, that are watched: the first ones", minimum=0
    )
    columns: tuple[str, ...] = setting((), "names of the columns to watch instead of the first ones")


@dataclass(frozen=True, slots=True)
class LiveConfig:
    """A graph that changes while it is served."""

    enabled: bool = setting(False, "take changes to the graph, from HTTP and from `hopline stream`")
    folder: Path | None = setting(
        None, "where changes are kept; by default the graph's folder with `.live` behind its name"
    )
    socket: Path | None = setting(
        None, "Unix socket on which the writer takes changes; by default `writer.sock` in live.folder"
    )
    spare_nodes: int = setting(1_000_000, "nodes of each type that can be added", minimum=0)
    spare_edges: int = setting(10_000_000, "edges of each type that can be added", minimum=0)
    levels: int | None = setting(
        None,
        "message-passing layers of the deepest model whose rows are kept, plus one; by default those of "
        "the repository's deepest when the writer starts",
        minimum=1,
    )
    degrees: bool = setting(
        False, "keep account of changed degrees of neighbours: rows of GCN models are kept only with it"
    )
    remembered_events: int = setting(
        1_000_000, "event ids by which events that come again are known", minimum=1
    )
    snapshot_bytes: int = setting(
        256 * 2**20, "bytes of changes after which a snapshot takes their place", minimum=1
    )
    snapshot_s: float = setting(3600.0, "seconds after which a snapshot takes their place", minimum=1)
    stand_by_s: float = setting(
        10.0,
        "a server that starts waits so long for the end of another one that writes live.folder; 0 is for "
        "ever",
        minimum=0,
    )
    nice: int = setting(
        5,
        "priority of the writer and of `hopline stream` below that of those who answer, as a nice value",
        minimum=0,
        maximum=19,
    )


@dataclass(frozen=True, slots=True)
class QueuesConfig:
    """Score requests from a message broker, beside HTTP and gRPC."""

    requests: str = setting(
        "", "address of the requests, such as kafka://host:9092/score?group=hopline; empty: none are read"
    )
    results: str = setting("", "topic of answers to requests without a reply-to header; empty: none")
    dead_letters: str = setting(
        "", "topic of messages that are no requests, with the reason; empty: they are logged and left"
    )
    reply_prefix: str = setting(
        "", "reply-to headers must begin so, other requests are refused; empty: all with a reply-to header"
    )
    concurrency: int = setting(64, "requests of a worker that are under way at once", minimum=1)
    retry_s: float = setting(
        30.0, "how long a request is tried again that the server cannot take now", minimum=0
    )
    max_deliveries: int = setting(
        5, "a message that was delivered more often is a dead letter; 0 is no limit", minimum=0
    )


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What the supervisor tells its workers; not for people."""

    index: int = setting(0, "number of this worker", internal=True)
    count: int = setting(1, "number of workers", internal=True)
    metrics_dir: str = setting(
        "", "folder in which workers put their metrics for each other", internal=True
    )
    table_fd: int = setting(
        -1, "memfd of the embedding tables; -1 for memory of this process", internal=True
    )
    rows_fd: int = setting(-1, "memfd of the feature rows kept near; -1 for this process", internal=True)
    live_memory: str = setting("", "where the live graph's memory can be opened", internal=True)
    model_factory: str = setting(
        "", '"module:attribute" that opens models in processes of their own; empty: as usual', hidden=True
    )
    isolated: bool = setting(False, "whether this process runs one model for another one", internal=True)


@dataclass(frozen=True, slots=True)
class Config:
    """The whole tree; see each section."""

    server: ServerConfig = field(default_factory=ServerConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    table: TableConfig = field(default_factory=TableConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    graph: GraphConfig = field(default_factory=GraphConfig)
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
    worker: WorkerConfig = field(default_factory=WorkerConfig)

    def replace(self, **settings: Any) -> Config:
        """A copy with other values; names are "section__key"."""
        changes = {name.replace("__", ".", 1): value for name, value in settings.items()}
        config = apply(self, flags(changes))
        check_tls(config)
        return config

    def to_json(self) -> str:
        """Every value; `Config.from_json` reads it back (that is how workers get their config)."""
        return json.dumps(dataclasses.asdict(self), default=str)

    @staticmethod
    def from_json(text: str) -> Config:
        """The config that `to_json` wrote."""
        return apply(Config(), flatten(json.loads(text), "the supervisor"))


def check_tls(config: Config) -> None:
    """Check the files of `tls`.

    Raises: ConfigError: one is not there, or is set without the other.
    """
    for name, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
        path = getattr(config.tls, name)
        if path is None:
            continue
        if not path.is_file():
            raise ConfigError(f"tls.{name}: {str(path)!r} does not exist or is not a file")
        if getattr(config.tls, other) is None:
            raise ConfigError(f"tls.{other}: must be set together with tls.{name}")

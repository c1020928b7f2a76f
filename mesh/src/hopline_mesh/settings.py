"""Every setting of `hopline mesh watch`, in one tree of frozen dataclasses.

Sources, later ones win: the defaults below < `hopline-mesh.toml` < environment `TAGAE_KEY` < command-line
flags. Keys are unique over all sections, so that the environment needs no section: `[detector]
window_size` is `TAGAE_WINDOW_SIZE`. To add a setting, add one line to a section.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hopline.config.setting import did_you_mean, read_value, setting, type_name
from hopline.errors import ConfigError

ENV_PREFIX = "TAGAE_"
DEFAULT_FILE = Path("hopline-mesh.toml")

#: Other names of settings, where two are in use.
ALIASES = {"ALERTMANAGER_URL": "ALERTMANAGER_URLS"}

#: What Kubernetes puts into the environment of every pod for a Service whose name begins with "tagae".
_SERVICE_LINK = re.compile(r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_.+)?)")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Where the numbers come from."""

    mesh: Literal["istio", "linkerd", "file"] = setting(
        "istio", "whose metrics Prometheus has; file: those that the queries in query_file ask for"
    )
    prometheus_url: str = setting("http://127.0.0.1:9090", "Prometheus, or what answers as it does")
    query_file: Path | None = setting(None, "queries for each column, for mesh = file")
    interval_s: float = setting(15.0, "seconds from one snapshot to the next", minimum=0.1, maximum=3600)
    rate_window_s: float = setting(
        60.0, "seconds that rates are taken over; at least 4 scrapes of Prometheus", minimum=0.4
    )
    delay_s: float = setting(
        0.0, "how long before now each snapshot ends, for a Prometheus that is late", minimum=0
    )
    timeout_s: float = setting(5.0, "longest that all queries of one snapshot may take", minimum=0.05)
    matchers: str = setting("", 'further matchers of every query, such as cluster="eu-1"')
    namespaces: tuple[str, ...] = setting(
        (), "namespaces that are watched, as regular expressions; empty: all"
    )
    exclude_namespaces: tuple[str, ...] = setting(
        # Not istio-system: that is where the gateways are, through which all traffic enters.
        ("kube-system", "linkerd", "linkerd-viz"),
        "namespaces that are left out, as regular expressions",
    )
    max_services: int = setting(
        20_000, "services that are watched at most (N_max); those beyond are counted as a gap", minimum=1
    )
    max_edges: int = setting(200_000, "call paths that are watched at most", minimum=1)
    prometheus_token_file: Path | None = setting(None, "file with a bearer token for Prometheus")
    ca_file: Path | None = setting(None, "PEM certificates by which Prometheus and Alertmanager are known")


@dataclass(frozen=True, slots=True)
class DetectorSettings:
    """What is normal, and what is too far from it."""

    window_size: int = setting(120, "snapshots that the model looks back", minimum=4, maximum=10_000)
    anomaly_percentile: float = setting(
        99.0,
        "percentile of the errors of normal time that is the threshold's start",
        minimum=50,
        maximum=99.999,
    )
    false_alarms_per_day: float = setting(
        1.0, "false alarms a day that the threshold is calibrated to", minimum=0.001, maximum=1000
    )
    warm_up: int = setting(10, "snapshots before the first verdict", minimum=10)
    hold_s: float = setting(
        80.0, "seconds that a deviation must last before it is an incident", minimum=0, maximum=3600
    )
    clean_s: float = setting(
        90.0, "seconds without a deviation after which an incident is over", minimum=0, maximum=86_400
    )
    fine_tune_interval_s: float = setting(
        3600.0, "seconds between trainings on what was seen since; 0: never", minimum=0
    )
    fine_tune_hours: float = setting(
        6.0, "hours of snapshots that are kept to train on", minimum=0.01, maximum=168
    )
    train_at: int = setting(
        240, "snapshots after which the model is first trained, where it was not before", minimum=20
    )
    threads: int = setting(
        2, "threads of the graph model; more than 2 are for meshes in parts", minimum=1, maximum=256
    )
    device: Literal["cpu", "cuda"] = setting(
        "cpu", "where the graph model runs; cuda is refused where torch finds none"
    )
    partition_above: int = setting(
        20_000, "services above which the mesh is in parts, by namespace", minimum=1
    )


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """The cluster, for planned changes."""

    kubernetes: Literal["auto", "never", "require"] = setting(
        "auto", "watch pods, deployments and autoscalers: auto does where it runs in a pod"
    )
    kubernetes_url: str = setting("", "API server; empty: that of the pod's service account")
    kubernetes_token_file: Path | None = setting(None, "file with its bearer token; empty: the pod's")
    kubernetes_ca_file: Path | None = setting(None, "PEM certificate of the API server; empty: the pod's")
    kubeconfig: Path | None = setting(None, "kubeconfig file to reach a cluster by, for development")
    trouble_calm_s: float = setting(
        300.0, "seconds after its last sign when an OOM kill or a crash loop is over", minimum=1
    )
    stuck_after_s: float = setting(
        600.0, "a rollout that comes no nearer to its end for this long is stuck", minimum=1
    )


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """Who is told."""

    alertmanager_urls: tuple[str, ...] = setting(
        (),
        "Alertmanagers, each of which gets every alert; empty: none (TAGAE_ALERTMANAGER_URL is the same)",
    )
    alert_labels: tuple[str, ...] = setting((), 'further labels of alerts, each as "name=value"')
    alertmanager_token_file: Path | None = setting(None, "file with a bearer token for the Alertmanagers")
    alert_hold_s: float = setting(
        240.0,
        "an alert ends by itself so long after the watch last told it; at least 3 intervals",
        minimum=1,
    )
    page_url: str = setting("", "URL of the page for people, in alerts; empty: the address it listens on")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Where the watch can be asked."""

    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for all interfaces")
    http_port: int = setting(
        9092, "port of the page and /metrics; 0 picks one, -1 is off", minimum=-1, maximum=65535
    )
    grpc_port: int = setting(9091, "port of gRPC; 0 picks one, -1 is off", minimum=-1, maximum=65535)
    socket: Path | None = setting(None, "Unix socket for others in the pod; empty: none")
    clients_file: Path | None = setting(
        None,
        "TOML file of clients with hashed API keys; where it is set, everybody has to say who they are",
    )
    allow_anonymous: bool = setting(False, "let everybody ask, also where host is not a loopback address")
    open_metrics: bool = setting(False, "/metrics needs no key")
    cert_file: Path | None = setting(None, "PEM certificate chain, for HTTP and gRPC")
    key_file: Path | None = setting(None, "PEM private key of cert_file")


@dataclass(frozen=True, slots=True)
class StateSettings:
    """What a restart takes up again."""

    state_dir: Path = setting(Path("/var/tagae"), "folder of the state")
    state_bytes: int = setting(
        480 * 2**20, "room in state_dir; what does not fit is not kept, and said", minimum=2**20
    )
    state_interval_s: float = setting(
        300.0,
        "seconds between writings of what is large; snapshots and incidents are always written",
        minimum=0,
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Logging of the watch."""

    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "least level that is written")
    log_format: Literal["text", "json"] = setting("text", "lines for people or for machines")


@dataclass(frozen=True, slots=True)
class MeshSettings:
    """The whole tree; see each section."""

    source: SourceSettings = field(default_factory=SourceSettings)
    detector: DetectorSettings = field(default_factory=DetectorSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    serve: ServeSettings = field(default_factory=ServeSettings)
    state: StateSettings = field(default_factory=StateSettings)
    log: LogSettings = field(default_factory=LogSettings)

    def replace(self, **values: Any) -> MeshSettings:
        """A copy with other values, by key."""
        return load_settings(flags=values, base=self)


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One line of the table of settings.

    Attributes:
        path: "section.key" as in hopline-mesh.toml.
        env: the environment variable.
        type: in words.
        default: as it would be written.
        help: one line.
    """

    path: str
    env: str
    type: str
    default: Any
    help: str


def settings_table() -> list[SettingRow]:
    """Every setting in declaration order, for the docs."""
    return [
        SettingRow(
            f"{section}.{key}",
            ENV_PREFIX + key.upper(),
            type_name(annotation),
            item.default,
            item.metadata["help"],
        )
        for key, (section, item, annotation) in _fields().items()
    ]


def load_settings(
    file: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    *,
    base: MeshSettings | None = None,
) -> MeshSettings:
    """Resolve all sources.

    Args:
        file: a hopline-mesh.toml; None reads none.
        env: environment variables; None takes none. Those that Kubernetes sets for Services whose names
            begin with "tagae" (`TAGAE_PORT=tcp://...`) are no settings.
        flags: key -> value; None values are left out.
        base: what stands below all sources instead of the defaults.

    Raises:
        ConfigError: an unknown name (with the closest known one), a bad value, or values that do not go
            together; the message starts with the name as the source has it.
    """
    settings = base or MeshSettings()
    if file is not None:
        settings = _apply(settings, _of_file(Path(file)))
    if env is not None:
        settings = _apply(settings, _of_env(env))
    if flags is not None:
        given = {key: (key, value, "flag") for key, value in flags.items() if value is not None}
        settings = _apply(settings, given)
    _check(settings)
    return settings


def show_settings(settings: MeshSettings) -> Iterator[tuple[str, Any]]:
    """("section.key", value) of every setting."""
    for key, (section, _, _) in _fields().items():
        yield f"{section}.{key}", getattr(getattr(settings, section), key)


@functools.cache
def _fields() -> dict[str, tuple[str, dataclasses.Field[Any], Any]]:
    """key -> section, field and its resolved type."""
    found = {}
    for section, section_type in typing.get_type_hints(MeshSettings).items():
        hints = typing.get_type_hints(section_type)
        for item in dataclasses.fields(section_type):
            assert item.name not in found, f"two settings named {item.name}"
            found[item.name] = (section, item, hints[item.name])
    return found


def _of_file(file: Path) -> dict[str, tuple[str, Any, str]]:
    """key -> name as written, value, source."""
    try:
        tree = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    known = {row.path: row.path.partition(".")[2] for row in settings_table()}
    found = {}
    for section, values in tree.items():
        if not isinstance(values, Mapping):
            raise ConfigError(f"{section}: not in a section ({file}){_suggestion(section)}")
        for name, value in values.items():
            path = f"{section}.{name}"
            if path not in known:
                raise ConfigError(f"{path}: unknown setting ({file}){_suggestion(name)}")
            found[name] = (path, value, str(file))
    return found


def _of_env(env: Mapping[str, str]) -> dict[str, tuple[str, Any, str]]:
    found: dict[str, tuple[str, Any, str]] = {}
    for name, value in env.items():
        if not name.startswith(ENV_PREFIX):
            continue
        rest = name.removeprefix(ENV_PREFIX)
        key = ALIASES.get(rest, rest).lower()
        if _SERVICE_LINK.fullmatch(rest) or (rest.endswith("PORT") and _SERVICE_ADDRESS.match(value)):
            continue
        if key not in _fields():
            names = [row.env for row in settings_table()]
            raise ConfigError(f"{name}: unknown setting (environment){did_you_mean(name, names)}")
        if key in found:
            raise ConfigError(f"{name}: {found[key][0]} says the same and is set as well; set one of them")
        found[key] = (name, value, "environment")
    return found


def _apply(settings: MeshSettings, values: Mapping[str, tuple[str, Any, str]]) -> MeshSettings:
    changes: dict[str, dict[str, Any]] = {}
    for key, (name, value, source) in values.items():
        if key not in _fields():
            raise ConfigError(f"{name}: unknown setting ({source}){_suggestion(key)}")
        section, item, annotation = _fields()[key]
        # Sizes are known by their name, which in the environment is in capitals.
        path = name.lower() if name.isupper() else name
        try:
            changes.setdefault(section, {})[key] = read_value(value, annotation, path, item, source)
        except ConfigError as error:
            raise ConfigError(name + str(error).removeprefix(path)) from None
    sections = {name: dataclasses.replace(getattr(settings, name), **new) for name, new in changes.items()}
    return dataclasses.replace(settings, **sections)


def _suggestion(key: str) -> str:
    paths = {row.path.partition(".")[2]: row.path for row in settings_table()}
    if key in paths:
        return f"; did you mean {paths[key]!r}?"
    return did_you_mean(key, paths)


def _check(settings: MeshSettings) -> None:
    """Values that must go together."""
    source, alerts = settings.source, settings.alerts
    for key, urls in (
        ("prometheus_url", (source.prometheus_url,)),
        ("alertmanager_urls", alerts.alertmanager_urls),
        ("kubernetes_url", (settings.kubernetes.kubernetes_url,)),
        ("page_url", (alerts.page_url,)),
    ):
        for url in urls:
            if url and not re.match(r"https?://[^/\s]", url):
                raise ConfigError(f"{key}: {url!r} is not a URL such as http://host:9090")
    if not source.prometheus_url:
        raise ConfigError("prometheus_url: empty; it is where all numbers come from")
    if source.mesh == "file" and source.query_file is None:
        raise ConfigError("query_file: not set, but mesh = file needs a file of queries")
    if source.query_file is not None and not source.query_file.is_file():
        raise ConfigError(f"query_file: {str(source.query_file)!r} does not exist or is not a file")
    for label in alerts.alert_labels:
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*=.*", label):
            raise ConfigError(f'alert_labels: {label!r} is not "name=value" with a name of letters, 0-9, _')

"""Every setting of `hopline mesh watch`, in one tree of frozen dataclasses.

Sources, later ones win: the defaults below < `hopline-mesh.toml` < environment
`HOPLINE_MESH__SECTION__KEY` < command-line flags. Keys are unique over all sections, so that flags need no
section. To add a setting, add one line to a section.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hopline.config.reader import ConfigRow, read_toml
from hopline.config.setting import bounds_text, did_you_mean, setting, type_name
from hopline.config.values import apply, fields, flatten
from hopline.config.values import flags as read_flags
from hopline.errors import ConfigError
from hopline_mesh.out.alert import OWN_LABELS
from hopline_mesh.out.links import check_template, origin_of

ENV_PREFIX = "HOPLINE_MESH__"
DEFAULT_FILE = Path("hopline-mesh.toml")

#: Names of the environment that the description of TAGAE has; they stay.
OF_TAGAE = {"window_size": "TAGAE_WINDOW_SIZE", "anomaly_percentile": "TAGAE_ANOMALY_PERCENTILE"}
_OLD_PREFIX = "TAGAE_"

#: Longest time that a deviation must last, in intervals.
HOLD = 16

#: Variables that Kubernetes sets in every pod for a Service whose name begins with "tagae".
_SERVICE_LINK = re.compile(r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_.+)?)")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The source of the measurements."""

    mesh: Literal["istio", "linkerd", "file"] = setting(
        "istio", "service mesh whose metrics are queried; file: use the queries of query_file"
    )
    prometheus_url: str = setting("http://127.0.0.1:9090", "URL of Prometheus or a compatible server")
    query_file: Path | None = setting(None, "file with a query for each column, for mesh = file")
    interval_s: float = setting(15.0, "seconds between snapshots", minimum=0.1, maximum=3600)
    rate_window_s: float = setting(
        60.0, "window of rates in seconds; at least 4 scrapes of Prometheus", minimum=0.4, maximum=86_400
    )
    delay_s: float = setting(
        0.0,
        "seconds before now at which each snapshot ends, if Prometheus has a delay",
        minimum=0,
        maximum=3600,
    )
    timeout_s: float = setting(
        5.0, "timeout in seconds for all queries of one snapshot", minimum=0.05, maximum=3600
    )
    matchers: str = setting("", 'label matchers that are added to every query, such as cluster="eu-1"')
    namespaces: tuple[str, ...] = setting((), "namespaces to watch, as regular expressions; empty: all")
    exclude_namespaces: tuple[str, ...] = setting(
        # Not istio-system: it has the gateways, through which all traffic enters.
        ("kube-system", "linkerd", "linkerd-viz"),
        "namespaces to leave out, as regular expressions",
    )
    max_services: int = setting(
        20_000,
        "maximum number of services (N_max); further ones are counted as a gap",
        minimum=1,
        maximum=1_000_000,
    )
    max_edges: int = setting(200_000, "maximum number of call paths", minimum=1, maximum=10_000_000)
    prometheus_token_file: Path | None = setting(None, "file with a bearer token for Prometheus")
    ca_file: Path | None = setting(None, "PEM CA certificates for Prometheus and Alertmanager")


@dataclass(frozen=True, slots=True)
class DetectorSettings:
    """The baseline, and deviations from it."""

    window_size: int = setting(120, "snapshots in the window", minimum=4, maximum=10_000)
    anomaly_percentile: float = setting(
        99.0,
        "percentile of deviations in normal time above which the tail for thresholds is fitted",
        minimum=50,
        maximum=99.999,
    )
    false_alarms_per_day: float = setting(
        1.0, "expected false alarms a day for which thresholds are calibrated", minimum=0.001, maximum=1000
    )
    warm_up: int = setting(10, "snapshots before the first verdict", minimum=10, maximum=10_000)
    min_duration_s: float = setting(
        80.0,
        "seconds that a deviation must last to become an incident; at most 16 intervals, to which the "
        "default is reduced",
        minimum=0,
        maximum=3600,
    )
    clean_s: float = setting(
        90.0, "seconds without a deviation after which an incident ends", minimum=0, maximum=86_400
    )
    fine_tune_interval_s: float = setting(
        3600.0, "seconds between trainings on recent snapshots; 0: never", minimum=0, maximum=2_592_000
    )
    fine_tune_hours: float = setting(
        6.0, "hours of snapshots that are stored for trainings", minimum=0.01, maximum=168
    )
    train_at: int = setting(240, "snapshots before the first training", minimum=20, maximum=1_000_000)


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """The cluster, the source of planned changes and troubles."""

    kubernetes: Literal["auto", "never", "require"] = setting(
        "auto", "watch pods, deployments and autoscalers; auto: only if the watch runs in a pod"
    )
    kubernetes_url: str = setting("", "URL of the API server; empty: that of the pod's service account")
    kubernetes_token_file: Path | None = setting(
        None, "file with a bearer token for the API server; empty: the pod's"
    )
    kubernetes_ca_file: Path | None = setting(None, "PEM certificate of the API server; empty: the pod's")
    kubeconfig: Path | None = setting(None, "kubeconfig file of a cluster, for development")
    trouble_calm_s: float = setting(
        300.0,
        "seconds after the last sign at which an OOM kill or a crash loop ends",
        minimum=1,
        maximum=86_400,
    )
    stuck_after_s: float = setting(
        600.0, "seconds without progress after which a rollout is stuck", minimum=1, maximum=86_400
    )


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """The Alertmanagers."""

    alertmanager_urls: tuple[str, ...] = setting(
        (),
        "URLs of Alertmanagers; each gets every alert; empty: none",
    )
    alert_labels: tuple[str, ...] = setting((), 'labels that are added to alerts, each as "name=value"')
    alertmanager_token_file: Path | None = setting(None, "file with a bearer token for the Alertmanagers")
    alert_timeout_s: float = setting(
        240.0,
        "seconds after the last post at which Alertmanager resolves an alert; at least 3 intervals",
        minimum=1,
        maximum=86_400,
    )
    links: tuple[str, ...] = setting(
        (),
        'links from an incident to other tools, each as "name=https://host/path?service={service}"; '
        "a list in the file, because URLs may have commas",
    )
    page_url: str = setting(
        "",
        "URL of the page, for links in alerts, and the public name that it has without keys; empty: the "
        "address it listens on, no link on 0.0.0.0",
    )


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Ports and authentication of the watch."""

    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for all interfaces")
    http_port: int = setting(
        9092, "port of the page and /metrics; 0 picks one, -1 is off", minimum=-1, maximum=65535
    )
    grpc_port: int = setting(9091, "port of gRPC; 0 picks one, -1 is off", minimum=-1, maximum=65535)
    socket: Path | None = setting(None, "Unix socket for other containers of the pod; empty: none")
    clients_file: Path | None = setting(
        None,
        "TOML file of clients with hashed API keys; if set, every request needs a key",
    )
    allow_anonymous: bool = setting(
        False, "allow access without a key, also if host is not a loopback address"
    )
    open_metrics: bool = setting(False, "/metrics needs no key")
    cert_file: Path | None = setting(None, "PEM certificate chain, for HTTP and gRPC")
    key_file: Path | None = setting(None, "PEM private key of cert_file")


@dataclass(frozen=True, slots=True)
class StateSettings:
    """The state that a restart restores."""

    state_dir: Path = setting(Path("/var/tagae"), "folder of the state")
    state_bytes: int = setting(
        480 * 2**20,
        "maximum size of state_dir; state that does not fit is dropped and reported",
        minimum=2**20,
        maximum=2**40,
    )
    state_interval_s: float = setting(
        300.0,
        "seconds between checkpoints; snapshots and incidents are written every interval",
        minimum=0,
        maximum=86_400,
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Logging of the watch."""

    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "lowest level that is logged")
    log_format: Literal["text", "json"] = setting("text", "text lines for people, or JSON lines")


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


def settings_table() -> list[ConfigRow]:
    """Every setting in declaration order, for the docs."""
    return [
        ConfigRow(
            path,
            type_name(annotation),
            item.default,
            _env_of(path),
            item.metadata["help"],
            bounds_text(item),
        )
        for path, (item, annotation) in fields(MeshSettings).items()
    ]


def load_settings(
    file: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> MeshSettings:
    """Resolve all sources.

    Args:
        file: a hopline-mesh.toml; None reads none.
        env: environment variables; None reads none. Those that Kubernetes sets for Services whose names
            begin with "tagae" (`TAGAE_PORT=tcp://...`) are ignored.
        flags: key -> value; None values are left out.

    Raises:
        ConfigError: an unknown name (with the closest known one), an invalid value, or values that
            contradict each other; the message has the setting and its source.
    """
    settings = MeshSettings()
    if file is not None:
        settings = apply(settings, flatten(read_toml(Path(file)), str(file)))
    if env is not None:
        settings = apply(settings, _of_env(env))
    if flags is not None:
        given = {_path_of().get(key, key): value for key, value in flags.items()}
        settings = apply(settings, read_flags(given))
    _check(settings)
    return settings


def _env_of(path: str) -> str:
    section, key = path.split(".")
    return OF_TAGAE.get(key, f"{ENV_PREFIX}{section}__{key}".upper())


@functools.cache
def _path_of() -> dict[str, str]:
    """Return key -> "section.key"."""
    found = {path.partition(".")[2]: path for path in fields(MeshSettings)}
    assert len(found) == len(fields(MeshSettings)), "two settings have the same key"
    return found


def _of_env(env: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return path -> value and the name of the variable.

    Raises:
        ConfigError: a variable has one of our prefixes and is not a setting, or two are the same setting.
    """
    paths = {f"{ENV_PREFIX}{path.replace('.', '__')}".upper(): path for path in fields(MeshSettings)}
    paths |= {_env_of(path): path for path in fields(MeshSettings)}
    found: dict[str, tuple[str, str]] = {}
    for name, value in env.items():
        path = paths.get(name.upper() if name.startswith(ENV_PREFIX) else name)
        if path is None:
            _check_unknown(name, value)
        elif path in found:
            raise ConfigError(f"{name}: {found[path][1]} is the same setting; set only one of them")
        else:
            found[path] = (value, name)
    return found


def _check_unknown(name: str, value: str) -> None:
    """Refuse a variable that is not a setting, if it has one of our prefixes."""
    if not name.startswith((ENV_PREFIX, _OLD_PREFIX)):
        return
    if name.startswith(_OLD_PREFIX):
        rest = name.removeprefix(_OLD_PREFIX)
        if _SERVICE_LINK.fullmatch(rest) or (rest.endswith("PORT") and _SERVICE_ADDRESS.match(value)):
            return
        path = _path_of().get({"ALERTMANAGER_URL": "alertmanager_urls"}.get(rest, rest.lower()))
        if path is not None:
            raise ConfigError(f"{name}: renamed; set {_env_of(path)}")
    names = [row.env for row in settings_table()]
    raise ConfigError(f"{name}: unknown setting{did_you_mean(name, names)}")


def _check(settings: MeshSettings) -> None:
    """Check values that depend on each other."""
    source, alerts = settings.source, settings.alerts
    for key, urls in (
        ("prometheus_url", (source.prometheus_url,)),
        ("alertmanager_urls", alerts.alertmanager_urls),
        ("kubernetes_url", (settings.kubernetes.kubernetes_url,)),
        ("page_url", (alerts.page_url,)),
    ):
        for url in urls:
            if not url:
                continue
            try:
                origin = origin_of(url)
            except ValueError as error:
                raise ConfigError(
                    f"{key}: {url!r} is not a URL such as http://host:9090: {error}"
                ) from None
            if not re.match(r"https?://[^/\s]", origin):
                raise ConfigError(f"{key}: {url!r} is not a URL such as http://host:9090")
    shortest_s = settings.detector.min_duration_s
    if shortest_s > HOLD * source.interval_s and shortest_s != DetectorSettings().min_duration_s:
        raise ConfigError(
            f"min_duration_s: {shortest_s:g} must be at most {HOLD * source.interval_s:g}, "
            f"{HOLD} intervals of {source.interval_s:g} s"
        )
    if not source.prometheus_url:
        raise ConfigError("prometheus_url: empty; set the URL of Prometheus")
    if source.mesh == "file" and source.query_file is None:
        raise ConfigError("query_file: not set, but mesh = file needs a file of queries")
    if source.query_file is not None and not source.query_file.is_file():
        raise ConfigError(f"query_file: {str(source.query_file)!r} does not exist or is not a file")
    for link in alerts.links:
        check_template(link)
    names: set[str] = set()
    for label in alerts.alert_labels:
        name = label.partition("=")[0]
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*=.+", label):
            raise ConfigError(f'alert_labels: {label!r} is not "name=value" with a name of letters, 0-9, _')
        if name in OWN_LABELS:
            raise ConfigError(
                f"alert_labels: {label!r}: the watch sets the label {name} itself; use another name"
            )
        if name in names:
            raise ConfigError(f"alert_labels: {label!r}: {name} is there twice")
        names.add(name)
    least_s = 3 * source.interval_s
    if alerts.alertmanager_urls and alerts.alert_timeout_s < least_s:
        raise ConfigError(
            f"alert_timeout_s: {alerts.alert_timeout_s:g} is less than 3 intervals of "
            f"{source.interval_s:g} s: set it to {least_s:g} or more, because one late interval would "
            "resolve all alerts"
        )

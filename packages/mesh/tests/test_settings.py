"""Settings of the watch: sources, names, bounds, and what Kubernetes puts into the environment."""

from pathlib import Path

import pytest

from hopline.config.values import fields
from hopline.errors import ConfigError
from hopline_mesh.settings import MeshSettings, load_settings


def test_defaults_are_those_of_the_design():
    settings = load_settings(env={})
    assert settings.detector.window_size == 120
    assert settings.detector.anomaly_percentile == 99
    assert settings.source.interval_s == 15
    assert settings.serve.grpc_port == 9091
    assert settings.state.state_dir == Path("/var/tagae")


def test_environment_sets_every_setting_by_section_and_key():
    settings = load_settings(
        env={
            "TAGAE_WINDOW_SIZE": "60",
            "TAGAE_ANOMALY_PERCENTILE": "99.5",
            "HOPLINE_MESH__SOURCE__NAMESPACES": "shop, pay",
            "HOPLINE_MESH__STATE__STATE_BYTES": "64 MiB",
            "PATH": "/bin",
        }
    )
    assert settings.detector.window_size == 60
    assert settings.detector.anomaly_percentile == 99.5
    assert settings.source.namespaces == ("shop", "pay")
    assert settings.state.state_bytes == 64 * 2**20


def test_flags_go_above_the_environment_and_that_above_the_file(tmp_path):
    file = tmp_path / "hopline-mesh.toml"
    file.write_text("[detector]\nwindow_size = 10\nwarm_up = 11\nfalse_alarms_per_day = 2\n")
    env = {"TAGAE_WINDOW_SIZE": "20", "HOPLINE_MESH__DETECTOR__WARM_UP": "21"}
    settings = load_settings(file, env, {"window_size": 30, "warm_up": None})
    assert settings.detector.window_size == 30
    assert settings.detector.warm_up == 21
    assert settings.detector.false_alarms_per_day == 2


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"TAGAE_WINDOWSIZE": "5"}, r"TAGAE_WINDOWSIZE: unknown .*TAGAE_WINDOW_SIZE"),
        (
            {"TAGAE_WINDOW_SIZE": "many"},
            r"window_size: 'many' \(TAGAE_WINDOW_SIZE\) is not an integer",
        ),
        ({"TAGAE_WINDOW_SIZE": "1"}, r"window_size: '1' \(TAGAE_WINDOW_SIZE\) .*between 4 and"),
        ({"TAGAE_ANOMALY_PERCENTILE": "nan"}, r"anomaly_percentile: 'nan' .* not a number"),
        ({"HOPLINE_MESH__SOURCE__MESH": "istoi"}, r"\(HOPLINE_MESH__SOURCE__MESH\) .*did you mean 'istio'"),
        ({"HOPLINE_MESH__SOURCE__PROMETHEUS_URL": "prometheus:9090"}, r"prometheus_url: .* is not a URL"),
        ({"HOPLINE_MESH__ALERTS__PAGE_URL": "http://[::1:9092"}, r"page_url: .* is not a URL"),
        ({"HOPLINE_MESH__ALERTS__PAGE_URL": "http://a:port"}, r"page_url: .* is not a URL"),
        ({"HOPLINE_MESH__SOURCE__MESH": "file"}, r"query_file: not set"),
        ({"HOPLINE_MESH__DETECTOR__MESH": "istio"}, r"HOPLINE_MESH__DETECTOR__MESH: unknown"),
        ({"TAGAE_PORT": "9000"}, r"TAGAE_PORT: unknown"),
        ({"TAGAE_HTTP_PORT": "1"}, r"TAGAE_HTTP_PORT: renamed; set HOPLINE_MESH__SERVE__HTTP_PORT$"),
        ({"TAGAE_ALERTMANAGER_URL": "http://a"}, r"renamed; set HOPLINE_MESH__ALERTS__ALERTMANAGER_URLS$"),
        (
            {"TAGAE_WINDOW_SIZE": "60", "HOPLINE_MESH__DETECTOR__WINDOW_SIZE": "60"},
            r"is the same setting; set only one",
        ),
        ({"HOPLINE_MESH__ALERTS__ALERT_LABELS": "a-b=c"}, r"alert_labels: 'a-b=c'"),
        ({"HOPLINE_MESH__ALERTS__ALERT_LABELS": "team="}, r"alert_labels: 'team=' is not"),
        (
            {"HOPLINE_MESH__ALERTS__ALERT_LABELS": "team=a,team=b"},
            r"alert_labels: 'team=b': team is there twice",
        ),
        *(
            (
                {"HOPLINE_MESH__ALERTS__ALERT_LABELS": f"{name}=Foo"},
                rf"alert_labels: '{name}=Foo': the watch sets the label {name} itself",
            )
            for name in ("alertname", "incident", "service", "namespace")
        ),
        (
            {
                "HOPLINE_MESH__ALERTS__ALERTMANAGER_URLS": "http://a:9093",
                "HOPLINE_MESH__ALERTS__ALERT_TIMEOUT_S": "3",
                "HOPLINE_MESH__SOURCE__INTERVAL_S": "2",
            },
            r"alert_timeout_s: 3 is less than 3 intervals of 2 s: set it to 6 or more",
        ),
        (
            {
                "HOPLINE_MESH__DETECTOR__MIN_DURATION_S": "90",
                "HOPLINE_MESH__SOURCE__INTERVAL_S": "5",
            },
            r"min_duration_s: 90 must be at most 80, 16 intervals of 5 s",
        ),
        (
            {"HOPLINE_MESH__STATE__STATE_BYTES": "much"},
            r"state.state_bytes: 'much' \(HOPLINE_MESH__STATE__STATE_BYTES\) .*a size such as",
        ),
    ],
)
def test_bad_names_and_values_are_named(env, says):
    with pytest.raises(ConfigError, match=says):
        load_settings(env=env)


def numbers() -> list[str]:
    return [path for path, (_, annotation) in fields(MeshSettings).items() if annotation in (int, float)]


@pytest.mark.parametrize("path", numbers())
def test_every_number_has_a_maximum(path):
    """None reaches the arithmetic of the watch that would overflow there, or need all memory."""
    for value in ("9" * 20, "1e300"):
        with pytest.raises(ConfigError, match=rf"^{path}: '{value}' .*(between|integer|size)"):
            load_settings(env={f"HOPLINE_MESH__{path.replace('.', '__')}".upper(): value})


@pytest.mark.parametrize(
    ("key", "highest"),
    [("delay_s", 3600), ("warm_up", 10_000), ("train_at", 1_000_000), ("max_services", 1_000_000)],
)
def test_the_maximum_itself_is_accepted(key, highest):
    load_settings(flags={key: highest})
    with pytest.raises(ConfigError, match=rf"{key}: {highest + 1} .*between .* and {highest}$"):
        load_settings(flags={key: highest + 1})


def test_a_setting_of_the_description_also_has_the_form_of_all_others():
    settings = load_settings(env={"HOPLINE_MESH__DETECTOR__WINDOW_SIZE": "60"})
    assert settings.detector.window_size == 60


def test_services_named_tagae_do_not_set_anything():
    """Kubernetes describes every Service of the namespace in the environment of its pods."""
    settings = load_settings(
        env={
            "TAGAE_SERVICE_HOST": "10.0.0.1",
            "TAGAE_SERVICE_PORT": "9091",
            "TAGAE_SERVICE_PORT_GRPC": "9091",
            "TAGAE_PORT": "tcp://10.0.0.1:9091",
            "TAGAE_PORT_9091_TCP": "tcp://10.0.0.1:9091",
            "TAGAE_PORT_9091_TCP_PROTO": "tcp",
            "TAGAE_GRPC_PORT": "tcp://10.0.0.2:9091",
            "TAGAE_GRPC_SERVICE_HOST": "10.0.0.2",
        }
    )
    assert settings == load_settings()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[detector\n", "not valid TOML"),
        ("window_size = 5\n", r"window_size: unknown setting .*detector.window_size"),
        ("[source]\nwindow_size = 5\n", "source.window_size: unknown .*detector.window_size"),
        ("[detector]\nwindow_size = true\n", "detector.window_size: True"),
    ],
)
def test_bad_files_are_named(tmp_path, text, says):
    file = tmp_path / "hopline-mesh.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_settings(file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.toml: no such file"):
        load_settings(tmp_path / "absent.toml")

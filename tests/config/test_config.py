from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from hopline.config.reader import config_table, load_config, show_config
from hopline.config.schema import Config
from hopline.errors import ConfigError


def toml(folder: Path, text: str) -> Path:
    file = folder / "hopline.toml"
    file.write_text(text)
    return file


def test_later_sources_win(tmp_path: Path) -> None:
    file = toml(tmp_path, "[server]\nhttp_port = 1\ngrpc_port = 1\nworkers = 1\nhost = 'a'\n")
    env = {"HOPLINE__SERVER__GRPC_PORT": "2", "HOPLINE__SERVER__WORKERS": "2", "PATH": "/bin"}
    config = load_config(file, env, {"server.workers": 3, "server.host": None})
    server = config.server
    assert (server.http_port, server.grpc_port, server.workers, server.host) == (1, 2, 3, "a")
    assert load_config() == Config()


def test_values_are_read_by_type(tmp_path: Path) -> None:
    file = toml(
        tmp_path,
        """
        [state_cache]
        memory_bytes = "1.5 GiB"
        [models]
        names = ["a", "b"]
        repository = "models"
        [batching]
        queue_delay_ms = 2
        [log]
        format = "json"
        """,
    )
    config = load_config(file, {"HOPLINE__MODELS__NAMES": "x, y"})
    assert config.state_cache.memory_bytes == 3 * 2**29
    assert config.models.names == ("x", "y")
    assert config.models.repository == Path("models")
    assert config.batching.queue_delay_ms == 2.0
    assert config.log.format == "json"


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("server.htp_port", 1, "did you mean 'server.http_port'"),
        ("http_port", 1, "did you mean 'server.http_port'"),
        ("sever.http_port", 1, "did you mean 'server.http_port'"),
        ("colour", 1, "sections are"),
        ("server.http_port", "abc", "server.http_port: 'abc' .flag. is not an integer"),
        ("server.http_port", 70000, "between 0 and 65535"),
        ("server.http_port", True, "not an integer"),
        ("server.workers", 0, "between 1 and 1024"),
        ("server.workers", "many", "is not an integer or 'auto'"),
        ("server.http_port", "auto", "'auto' .flag. is not an integer$"),
        ("server.drain_timeout_s", "nan", "not a number"),
        ("server.drain_timeout_s", "1_0", "not a number"),
        ("server.drain_timeout_s", "٣", "not a number"),
        ("server.drain_timeout_s", 10**400, "not a number"),
        ("server.drain_timeout_s", -1, "at least 0"),
        ("server.http_port", "٣", "not an integer"),
        ("server.http_port", "8" * 5000, "not an integer"),
        ("state_cache.memory_bytes", "9" * 400, "a size such as"),
        ("state_cache.memory_bytes", "٣ MiB", "a size such as"),
        ("state_cache.memory_bytes", "lots", "a size such as"),
        ("log.level", "inof", "did you mean 'info'"),
        ("models.names", 5, "list of strings"),
        ("server.host", 5, "not a string"),
        ("graph.path", 5, "not a path"),
        ("server", 5, "unknown setting"),
        ("worker.count", 2, "worker.count: internal setting.*did you mean 'server.workers'"),
        ("worker.state_cache_fd", 5, "internal setting, set by a server for its own processes .flag."),
    ],
)
def test_bad_settings_name_the_path_and_what_would_be_right(path: str, value: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_config(overrides={path: value})


def test_bad_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hopline.toml\) is not an integer"):
        load_config(toml(tmp_path, "[server]\nhttp_port = 'x'\n"))
    with pytest.raises(ConfigError, match=r"HOPLINE__SERVER__HTTP_PORT\) is not an integer"):
        load_config(env={"HOPLINE__SERVER__HTTP_PORT": "x"})
    with pytest.raises(ConfigError, match=r"worker.index: internal setting.*HOPLINE__WORKER__INDEX"):
        load_config(env={"HOPLINE__WORKER__INDEX": "1"})
    with pytest.raises(ConfigError, match=r"worker.count: internal setting.*hopline.toml"):
        load_config(toml(tmp_path, "[worker]\ncount = 2\n"))
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(toml(tmp_path, "[server"))
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "absent.toml")


def test_tls_files_are_checked(tmp_path: Path) -> None:
    cert = tmp_path / "cert.pem"
    cert.write_text("x")
    with pytest.raises(ConfigError, match=r"tls.cert_file: '.*absent.pem' does not exist"):
        load_config(overrides={"tls.cert_file": tmp_path / "absent.pem"})
    with pytest.raises(ConfigError, match=r"tls.key_file: must be set together with tls.cert_file"):
        load_config(overrides={"tls.cert_file": cert})


def test_workers_read_back_what_the_supervisor_wrote() -> None:
    config = load_config(
        overrides={
            "models.names": ("a",),
            "graph.path": Path("/g"),
            "log.level": "debug",
        }
    ).replace(worker__index=3)
    assert Config.from_json(config.to_json()) == config


def test_replace_checks_like_any_source() -> None:
    assert Config().replace(server__http_port=5).server.http_port == 5
    with pytest.raises(ConfigError, match="did you mean"):
        Config().replace(server__http_prt=5)


def test_every_setting_is_in_the_table_with_help() -> None:
    rows = {row.path: row for row in config_table()}
    fields = {
        f"{section.name}.{item.name}"
        for section in dataclasses.fields(Config)
        if section.name != "worker"
        for item in dataclasses.fields(
            section.type if isinstance(section.type, type) else _section(section.name)
        )
    }
    assert set(rows) == fields
    assert all(row.help and row.type for row in rows.values())
    assert rows["server.http_port"].bounds == "between 0 and 65535"
    assert not any(row.bounds for row in rows.values() if row.type not in ("integer", "number"))
    assert rows["server.http_port"].env == "HOPLINE__SERVER__HTTP_PORT"
    assert rows["log.format"].type == "'text' | 'json'"
    assert dict(show_config(Config()))["server.http_port"] == 8700


def _section(name: str) -> type:
    return type(getattr(Config(), name))


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("HOPLINE_SERVER_HTTP_PORT", "write HOPLINE__SERVER__HTTP_PORT"),
        ("HOPLINE_SERVER__HTTP_PORT", "write HOPLINE__SERVER__HTTP_PORT"),
        ("hopline__server__http_port", "write HOPLINE__SERVER__HTTP_PORT"),
        ("HOPLINE_GRAPH_PATH", "write HOPLINE__GRAPH__PATH"),
        ("HOPLINE_SERVER_HTTP_PRT", "did you mean HOPLINE__SERVER__HTTP_PORT"),
        ("HOPLINE_SERVER_WHATEVER_ELSE", "is not a setting"),
        ("HOPLINE__SERVER_HTTP_PORT", "did you mean"),
    ],
)
def test_a_variable_with_the_wrong_underscores_is_named_and_not_ignored(name, right):
    with pytest.raises(ConfigError, match=right) as error:
        load_config(env={name: "8080"})
    assert name in str(error.value)


@pytest.mark.parametrize("text", ["risk=7, fraud=2", '["risk=7", "fraud=2"]', ' ["risk=7","fraud=2"] '])
def test_a_list_is_given_with_commas_or_as_json(text):
    assert load_config(overrides={"models.pinned": text}).models.pinned == ("risk=7", "fraud=2")
    assert load_config(env={"HOPLINE__MODELS__PINNED": text}).models.pinned == ("risk=7", "fraud=2")


@pytest.mark.parametrize("text", ['["risk=7"', "[1]", "[risk=7]"])
def test_a_list_that_is_no_json_is_refused(text):
    with pytest.raises(ConfigError, match=r"models\.pinned: .*is not a list of strings"):
        load_config(overrides={"models.pinned": text})


def test_variables_of_commands_and_of_kubernetes_are_no_settings():
    """Kubernetes sets variables for each Service of the namespace, such as one named `hopline-server`."""
    load_config(
        env={
            "HOPLINE_URL": "http://127.0.0.1:8700",
            "HOPLINE_API_KEY": "secret",
            "HOPLINE_SERVICE_HOST": "10.0.0.1",
            "HOPLINE_PORT_8700_TCP_ADDR": "10.0.0.1",
            "HOPLINE_SERVER_SERVICE_HOST": "10.0.0.1",
            "HOPLINE_SERVER_SERVICE_PORT_HTTP": "8700",
            "HOPLINE_SERVER_PORT": "tcp://10.0.0.1:8700",
            "HOPLINE_SERVER_HTTP_PORT": "tcp://10.0.0.1:80",
            "HOPLINE_SERVER_PORT_8700_TCP": "tcp://10.0.0.1:8700",
            "HOPLINE_SERVER_PORT_8700_TCP_PROTO": "tcp",
        }
    )


def test_automatic_workers_are_one_for_each_cpu_or_for_the_threads_of_each(tmp_path):
    file = toml(tmp_path, "[server]\nworkers = 'auto'\n")
    assert load_config(file, cpus=6).server.workers == 6
    assert load_config(file, {"HOPLINE__COMPUTE__THREADS": "4"}, cpus=6).server.workers == 1
    assert load_config(file, {"HOPLINE__COMPUTE__THREADS": "2"}, cpus=6).server.workers == 3
    assert load_config(file, {"HOPLINE__SERVER__WORKERS": "2"}, cpus=6).server.workers == 2
    assert load_config(file, overrides={"server.workers": 5}, cpus=6).server.workers == 5
    assert load_config(overrides={"server.workers": " Auto "}, cpus=3).server.workers == 3
    assert load_config(overrides={"server.workers": "auto"}).server.workers == os.cpu_count()


def test_memory_of_a_container_bounds_defaults_and_nothing_that_was_set():
    mebi = 2**20
    small = load_config(memory_bytes=512 * mebi)
    assert small.features.memory_bytes == 64 * mebi
    assert small.batching.max_bytes == 64 * mebi
    assert small.limits.max_request_bytes == 128 * mebi
    stated = load_config(env={"HOPLINE__FEATURES__MEMORY_BYTES": "256 MiB"}, memory_bytes=512 * mebi)
    assert stated.features.memory_bytes == 256 * mebi
    assert load_config(memory_bytes=64 * 2**30) == load_config()
    assert load_config(memory_bytes=1).limits.max_request_bytes == mebi

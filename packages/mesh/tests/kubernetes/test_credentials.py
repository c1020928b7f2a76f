"""Who the watch says it is: in a pod, by settings, by a kubeconfig file, and over TLS."""

import base64
import ssl
import sys
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hopline.errors import ConfigError
from hopline_mesh.errors import SourceUnavailable
from hopline_mesh.kubernetes.api import Api
from hopline_mesh.kubernetes.credentials import from_files, in_cluster
from hopline_mesh.kubernetes.kubeconfig import from_kubeconfig
from hopline_mesh.kubernetes.resources import PODS
from hopline_mesh.kubernetes.watcher import kubernetes_watch
from hopline_mesh.settings import load_settings
from packages.mesh.tests.kubernetes.api_server import api_server
from packages.mesh.tests.kubernetes.things import pod, sizes


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of 127.0.0.1 that is its own authority, and its key: files."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


def make_certificate(folder):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return folder


@pytest.fixture
def server_tls(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "ca.crt", certificate / "key")
    return context


async def pods_by(credentials):
    """Names of all pods that the server tells of."""
    api = Api(credentials)
    try:
        return [each.metadata.name async for page in api.pages(PODS, None, "") for each in page.objects]
    finally:
        await api.close()


async def test_a_pod_uses_its_account_over_tls(certificate, server_tls, tmp_path):
    (tmp_path / "token").write_text("first")
    (tmp_path / "ca.crt").write_bytes((certificate / "ca.crt").read_bytes())
    async with api_server(tls=server_tls) as (api, url):
        await api.put(PODS, pod("web-a"))
        env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": url.rpartition(":")[2]}
        assert await pods_by(in_cluster(env, tmp_path)) == ["web-a"]


async def test_a_server_with_another_certificate_is_not_believed(server_tls):
    async with api_server(tls=server_tls) as (_, url):
        with pytest.raises(SourceUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await pods_by(from_files(url, None, None))


async def test_an_authority_that_was_replaced_is_read_again(certificate, server_tls, tmp_path):
    (tmp_path / "token").write_text("first")
    (tmp_path / "old").mkdir()
    authority = tmp_path / "ca.crt"
    authority.write_bytes((make_certificate(tmp_path / "old") / "ca.crt").read_bytes())
    async with api_server(tls=server_tls) as (api, url):
        await api.put(PODS, pod("web-a"))
        asked = Api(from_files(url, tmp_path / "token", authority))
        with pytest.raises(SourceUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await anext(asked.pages(PODS, None, ""))
        authority.write_bytes((certificate / "ca.crt").read_bytes())
        page = await anext(asked.pages(PODS, None, ""))
        assert [each.metadata.name for each in page.objects] == ["web-a"]
        await asked.close()


def test_outside_of_a_pod_there_is_no_account(tmp_path):
    assert in_cluster({}, tmp_path) is None
    assert in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path) is None


def test_addresses_of_version_6_are_written_in_brackets(tmp_path):
    (tmp_path / "token").write_text("first")
    found = in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path)
    assert found.url == "https://[fd00::1]:6443"


def config(folder, url, user, **cluster):
    """A kubeconfig file."""
    file = folder / "config"
    tree = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "dev",
        "contexts": [{"name": "dev", "context": {"cluster": "one", "user": "me"}}],
        "clusters": [{"name": "one", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "me", "user": user}],
    }
    file.write_text(yaml.safe_dump(tree))
    return file


async def test_a_kubeconfig_file_with_a_token_and_a_certificate_inline(certificate, server_tls, tmp_path):
    authority = base64.b64encode((certificate / "ca.crt").read_bytes()).decode()
    async with api_server(tls=server_tls) as (api, url):
        await api.put(PODS, pod("web-a"))
        file = config(tmp_path, url, {"token": "first"}, **{"certificate-authority-data": authority})
        assert await pods_by(from_kubeconfig(file)) == ["web-a"]


async def test_a_kubeconfig_file_with_a_client_certificate(certificate, server_tls, tmp_path):
    server_tls.verify_mode = ssl.CERT_REQUIRED
    server_tls.load_verify_locations(certificate / "ca.crt")
    user = {
        "client-certificate": str(certificate / "ca.crt"),
        "client-key": str(certificate / "key"),
        "token": "first",
    }
    async with api_server(tls=server_tls) as (api, url):
        await api.put(PODS, pod("web-a"))
        file = config(tmp_path, url, user, **{"certificate-authority": str(certificate / "ca.crt")})
        assert await pods_by(from_kubeconfig(file)) == ["web-a"]


def plugin(folder, now_s):
    """A program that counts how often it is asked, and gives credentials for ten minutes."""
    program = folder / "login"
    until = datetime.fromtimestamp(now_s + 600, UTC).isoformat()
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, os, pathlib\n"
        f"file = pathlib.Path({str(folder / 'count')!r})\n"
        "count = int(file.read_text() or 0) + 1 if file.exists() else 1\n"
        "file.write_text(str(count))\n"
        "assert json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind'] == 'ExecCredential'\n"
        f"print(json.dumps({{'status': {{'token': f'{{os.environ[\"WHO\"]}}-{{count}}', "
        f"'expirationTimestamp': {until!r}}}}}))\n"
    )
    program.chmod(0o755)
    return {"command": "./login", "env": [{"name": "WHO", "value": "me"}]}


def test_a_credential_plugin_runs_again_when_its_token_expires(tmp_path):
    now = [1_790_000_000.0]
    file = config(tmp_path, "http://127.0.0.1:1", {"exec": plugin(tmp_path, now[0])})
    credentials = from_kubeconfig(file, clock=lambda: now[0])
    assert [credentials.token(), credentials.token()] == ["me-1", "me-1"]
    now[0] += 3600
    assert credentials.token() == "me-2"


def test_a_credential_plugin_that_fails_is_named(tmp_path):
    file = config(tmp_path, "http://127.0.0.1:1", {"exec": {"command": "false"}})
    with pytest.raises(ConfigError, match="false exited with 1"):
        from_kubeconfig(file).token()
    file = config(tmp_path, "http://127.0.0.1:1", {"exec": {"command": "no-such-program"}})
    with pytest.raises(ConfigError, match="no-such-program returned no credentials"):
        from_kubeconfig(file).token()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read as a kubeconfig file"),
        ("- a", "not a kubeconfig file"),
        ("current-context: x", "no context named 'x'"),
        ("contexts: [{name: '', context: {cluster: one}}]", "no cluster named 'one'"),
    ],
)
def test_kubeconfig_files_that_are_none_are_refused(tmp_path, text, words):
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        from_kubeconfig(file)


def test_a_damaged_certificate_is_named(tmp_path):
    file = config(tmp_path, "https://127.0.0.1:1", {}, **{"certificate-authority-data": "!!"})
    with pytest.raises(ConfigError, match="certificate-authority"):
        from_kubeconfig(file).tls()
    (tmp_path / "ca.crt").write_text("nothing")
    with pytest.raises(ConfigError, match=r"certificate of Kubernetes: .* cannot be read"):
        from_files("https://127.0.0.1:1", None, tmp_path / "ca.crt").tls()


def connect(account=Path("/nowhere"), env=None, **flags):
    return kubernetes_watch(load_settings(flags=flags), env or {}, account)


def test_where_there_is_no_cluster_the_watch_says_so_or_refuses_as_wanted():
    assert [gap.what for gap in connect().gaps()] == ["kubernetes"]
    assert connect(kubernetes="never").gaps() == ()
    with pytest.raises(ConfigError, match="not in a pod with a service account"):
        connect(kubernetes="require")


def test_files_that_are_named_but_missing_are_reported_at_the_start(tmp_path):
    with pytest.raises(ConfigError, match=r"token of Kubernetes: .* cannot be read"):
        connect(kubernetes_url="http://127.0.0.1:1", kubernetes_token_file=tmp_path / "none")


async def test_settings_lead_to_a_server(tmp_path):
    (tmp_path / "token").write_text("first")
    async with api_server() as (api, url):
        await api.put(PODS, pod("web-a"))
        file = config(tmp_path, url, {"tokenFile": "token"})
        for way in (
            {"kubernetes_url": url, "kubernetes_token_file": tmp_path / "token"},
            {"kubeconfig": file},
        ):
            async with connect(**way, account=tmp_path) as watched:
                assert await watched.wait_listed(5)
                assert sizes(watched.feed)["pods"] == 1


@pytest.mark.parametrize("url", ["http://kubernetes.default:8001", "http://10.0.0.1"])
def test_no_token_goes_over_the_network_unencrypted(tmp_path, url):
    (tmp_path / "token").write_text("mine")
    with pytest.raises(ConfigError, match="would send the account's token unencrypted"):
        connect(kubernetes_url=url, account=tmp_path)
    assert connect(kubernetes_url=url).gaps() == ()  # without a token there is nothing to lose


def test_the_account_is_used_where_only_the_address_is_given(tmp_path):
    (tmp_path / "token").write_text("mine")
    watched = connect(kubernetes_url="http://127.0.0.1:1", account=tmp_path)
    assert watched._api._credentials.token() == "mine"
    assert watched.gaps() == ()

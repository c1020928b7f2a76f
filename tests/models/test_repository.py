"""Repositories at addresses: the same for a folder and for what fsspec reads."""

import errno
import multiprocessing
import os
import sys
import threading
import uuid
from pathlib import Path

import fsspec
import pytest

from hopline.config.folders import needed_folder
from hopline.config.reader import load_config
from hopline.config.schema import Config
from hopline.doors import Door
from hopline.errors import (
    ArtifactCorrupted,
    ArtifactError,
    BadRequest,
    ConfigError,
    ModelNotFound,
    RepositoryUnavailable,
)
from hopline.models.local_repository import LocalRepository
from hopline.models.repositories import configured_repository, open_repository
from hopline_stores.repository import FsspecRepository
from tests import versions
from tests.versions import FILES, version


class Folder:
    """A repository that is a folder, and its content."""

    def __init__(self, root):
        self.address = str(root / "models")
        self.root = root / "models"
        self.root.mkdir()

    def put(self, path, contents):
        versions.write(self.root / path, contents)

    def open(self):
        return open_repository(self.address)


class Memory:
    """A repository in memory, and a cache for it."""

    def __init__(self, root):
        self.address = f"memory://{uuid.uuid4().hex}/models"
        self.cache = root / "cache"
        self.files = fsspec.filesystem("memory")
        self.root = self.address.removeprefix("memory:/")

    def put(self, path, contents):
        for name, content in contents.items():
            self.files.pipe(f"{self.root}/{path}/{name}", content)

    def open(self):
        return open_repository(self.address, self.cache)


@pytest.fixture(params=[Folder, Memory])
def place(request, tmp_path):
    return request.param(tmp_path)


@pytest.fixture
def remote(tmp_path):
    return Memory(tmp_path)


def test_models_and_versions_are_listed_oldest_first(place):
    for name in ("10", "2", "1"):
        place.put(f"risk/{name}", version())
    place.put("churn/v1.10", version())
    place.put("churn/v1.9", version())
    place.put("flow/1", {"pipeline.toml": b"", "steps/rules.toml": b"x"})
    repository = place.open()
    assert repository.address == place.address
    assert repository.models() == ["churn", "flow", "risk"]
    assert repository.versions("risk") == ["1", "2", "10"]
    assert repository.versions("churn") == ["v1.9", "v1.10"]
    assert repository.versions("flow") == ["1"]
    assert repository.versions("absent") == []


def test_what_is_hidden_or_no_version_is_left_out(place):
    place.put("risk/1", version())
    place.put("risk/.2-draft", version())
    place.put("risk/notes", {"readme.txt": b"hello"})
    place.put("risk", {"serving.toml": b""})
    place.put(".cache/1", version())
    repository = place.open()
    assert repository.models() == ["risk"]
    assert repository.versions("risk") == ["1"]


def test_a_fetched_version_is_what_was_stored(place):
    place.put("risk/1", version())
    folder = place.open().fetch("risk", "1")
    assert versions.read(folder) == version()
    assert (folder.parent.name, folder.name) == ("risk", "1")


def test_a_pipeline_has_all_its_files(place):
    contents = {"pipeline.toml": b"steps", "steps/rules.toml": b"rules"}
    place.put("flow/1", contents)
    assert versions.read(place.open().fetch("flow", "1")) == contents


@pytest.mark.parametrize(
    ("contents", "error", "told"),
    [
        ({**version(), "head.onnx": b"other"}, ArtifactCorrupted, "sha256"),
        ({"model.json": b"{"}, ArtifactError, "not a valid model.json"),
        ({"model.json": versions.manifest({"../../escaped": b"x"})}, ArtifactError, "not inside"),
        ({"model.json": versions.manifest({"/tmp/escaped": b"x"})}, ArtifactError, "not inside"),
    ],
)
def test_a_version_that_is_not_whole_is_refused(place, contents, error, told):
    place.put("risk/1", contents)
    with pytest.raises(error, match=told):
        place.open().fetch("risk", "1")


def test_a_version_that_lacks_a_file_is_refused(place):
    place.put("risk/1", {name: content for name, content in version().items() if name != "head.onnx"})
    with pytest.raises(
        ArtifactCorrupted, match=r"models/risk/1/head\.onnx: listed in model.json but absent"
    ):
        place.open().fetch("risk", "1")


def test_absent_versions_and_models_are_reported_with_what_there_is(place):
    place.put("risk/1", version())
    place.put("risk/2", version())
    repository = place.open()
    with pytest.raises(ModelNotFound, match=r"'risk' has no version '3' in .*; there are: 1, 2"):
        repository.fetch("risk", "3")
    with pytest.raises(ModelNotFound, match=r"no model 'churn' in .*; there are: risk"):
        repository.fetch("churn", "1")


@pytest.mark.parametrize(
    "name", ["..", "../..", "../../etc", "a/b", "", ".hidden", "a\\b", "a\nb", "a" * 300, "\0"]
)
def test_names_cannot_lead_out_of_the_repository(place, name):
    repository = place.open()
    for ask in (
        lambda: repository.versions(name),
        lambda: repository.fetch(name, "1"),
        lambda: repository.fetch("risk", name),
        lambda: repository.model_file(name, "serving.toml"),
        lambda: repository.model_file("risk", name),
    ):
        with pytest.raises(BadRequest, match="name"):
            ask()


def test_files_beside_versions(place):
    place.put("risk/1", version())
    repository = place.open()
    assert repository.model_file("risk", "serving.toml") is None
    place.put("risk", {"serving.toml": b"first"})
    assert repository.model_file("risk", "serving.toml").read_bytes() == b"first"
    place.put("risk", {"serving.toml": b"second"})
    assert repository.model_file("risk", "serving.toml").read_bytes() == b"second"
    assert repository.model_file("absent", "serving.toml") is None


# Copies of what is far


def test_a_copy_is_made_once(remote, monkeypatch):
    remote.put("risk/1", version())
    repository = remote.open()
    first = repository.fetch("risk", "1")
    monkeypatch.setattr(repository._files.driver, "get", None)  # another download would fail
    assert repository.fetch("risk", "1") == first


def test_a_version_that_changed_under_its_name_is_fetched_beside_the_old_one(remote):
    remote.put("risk/1", version())
    repository = remote.open()
    old = repository.fetch("risk", "1")
    changed = version({**FILES, "head.onnx": b"another head"})
    remote.put("risk/1", changed)
    new = repository.fetch("risk", "1")
    assert versions.read(new) == changed
    assert versions.read(old) == version()  # whoever loaded it still has it whole


def test_a_pipeline_that_changed_is_noticed(remote):
    remote.put("flow/1", {"pipeline.toml": b"steps", "rules.toml": b"a"})
    repository = remote.open()
    old = repository.fetch("flow", "1")
    remote.put("flow/1", {"rules.toml": b"longer"})
    assert repository.fetch("flow", "1") != old


def test_a_damaged_copy_is_made_anew(remote):
    remote.put("risk/1", version())
    repository = remote.open()
    folder = repository.fetch("risk", "1")
    (folder / "head.onnx").write_bytes(b"bit rot")
    assert versions.read(repository.fetch("risk", "1")) == version()


def test_an_interrupted_download_leaves_nothing_that_looks_whole(remote, monkeypatch):
    remote.put("risk/1", version())
    repository = remote.open()
    whole = repository._files.driver.get

    def half(paths, targets):
        whole(paths[:1], targets[:1])
        raise ConnectionResetError("connection lost")

    monkeypatch.setattr(repository._files.driver, "get", half)
    with pytest.raises(RepositoryUnavailable, match=r"memory://.*: ConnectionResetError: connection lost"):
        repository.fetch("risk", "1")
    monkeypatch.setattr(repository._files.driver, "get", whole)
    assert not list(remote.cache.rglob("model.json"))
    assert versions.read(repository.fetch("risk", "1")) == version()


def test_what_a_killed_process_left_is_removed(remote):
    remote.put("risk/1", version())
    repository = remote.open()
    folder = repository.fetch("risk", "1")
    left = folder.parent / ".1-left"
    folder.rename(left)
    assert repository.fetch("risk", "1") == folder
    assert not left.exists()


def test_many_threads_fetch_one_version_once(remote, monkeypatch):
    remote.put("risk/1", version())
    downloads = []
    repositories = [remote.open() for _ in range(8)]
    for repository in repositories:
        whole = repository._files.driver.get

        def counted(paths, targets, whole=whole):
            downloads.append(paths)
            whole(paths, targets)

        monkeypatch.setattr(repository._files.driver, "get", counted)
    folders = []
    threads = [
        threading.Thread(target=lambda r=repository: folders.append(r.fetch("risk", "1")))
        for repository in repositories
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(folders)) == 1
    assert len(folders) == 8
    assert len(downloads) == 1


def _fetch_over_http(address, cache, results):
    results.put(str(open_repository(address, Path(cache)).fetch("risk", "1")))


def test_many_processes_fetch_one_version(tmp_path, served_folder):
    versions.write(served_folder.folder / "risk" / "1", version())
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    processes = [
        spawn.Process(target=_fetch_over_http, args=(served_folder.url, str(tmp_path / "cache"), results))
        for _ in range(3)
    ]
    for process in processes:
        process.start()
    found = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert len(found) == 1
    assert versions.read(Path(found.pop())) == version()
    assert served_folder.asked.count("/risk/1/head.onnx") == 1


# When the address does not answer


def broken(*_args, **_kwargs):
    raise TimeoutError("no answer")


def unplug(repository, monkeypatch):
    for name in ("ls", "find", "cat_file", "get"):
        monkeypatch.setattr(repository._files.driver, name, broken)


def test_a_server_restarts_from_its_copies_while_the_address_is_away(remote, monkeypatch, caplog):
    remote.put("risk/1", version())
    remote.put("risk/2", version(comment="two"))
    remote.put("risk", {"serving.toml": b"settings"})
    before = remote.open()
    copies = {name: before.fetch("risk", name) for name in ("1", "2")}
    before.model_file("risk", "serving.toml")
    repository = remote.open()
    unplug(repository, monkeypatch)
    assert repository.models() == ["risk"]
    assert repository.versions("risk") == ["1", "2"]
    assert {name: repository.fetch("risk", name) for name in ("1", "2")} == copies
    assert repository.model_file("risk", "serving.toml").read_bytes() == b"settings"
    assert "using the copies made before" in caplog.text


def test_without_copies_it_says_that_the_address_is_away(remote, monkeypatch):
    repository = remote.open()
    unplug(repository, monkeypatch)
    for ask in (
        repository.models,
        lambda: repository.versions("risk"),
        lambda: repository.fetch("risk", "1"),
        lambda: repository.model_file("risk", "serving.toml"),
    ):
        with pytest.raises(RepositoryUnavailable, match="cannot be asked: TimeoutError: no answer"):
            ask()


def test_a_damaged_copy_does_not_stand_in(remote, monkeypatch):
    remote.put("risk/1", version())
    repository = remote.open()
    (repository.fetch("risk", "1") / "head.onnx").unlink()
    unplug(repository, monkeypatch)
    with pytest.raises(RepositoryUnavailable):
        repository.fetch("risk", "1")


def test_a_cache_that_cannot_be_written_is_named(tmp_path, remote):
    remote.put("risk/1", version())
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match=r"models\.cache: .*file.*Not a directory"):
        open_repository(remote.address, tmp_path / "file").fetch("risk", "1")


# Addresses


def test_addresses_choose_their_kind(tmp_path):
    assert isinstance(open_repository(tmp_path), LocalRepository)
    assert isinstance(open_repository(str(tmp_path)), LocalRepository)
    by_url = open_repository(f"file://{tmp_path}")
    assert isinstance(by_url, LocalRepository)
    assert by_url.folder == tmp_path
    assert isinstance(open_repository("memory://models", tmp_path), FsspecRepository)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("nowhere/at/all", "nowhere/at/all is not a folder"),
        ("gss://bucket", "gss://bucket cannot be used: Protocol not known: gss; did you mean 'gs'"),
        ("gs://bucket/models", "gs:// needs the package gcsfs, which is not installed"),
    ],
)
def test_addresses_that_cannot_be_used_say_why(address, told, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ConfigError, match=f"models.repository: {told}"):
        open_repository(address)


def test_a_url_without_the_package_that_reads_it_names_the_extra(monkeypatch):
    monkeypatch.setattr(Door, "installed", lambda door: {})
    with pytest.raises(ConfigError, match=r"models.repository: s3://…@bucket: .*'hopline\[remote\]'"):
        open_repository("s3://key:secret@bucket")


def test_passwords_in_addresses_are_not_shown(tmp_path):
    repository = open_repository("http://user:secret@127.0.0.1:9/models", tmp_path)
    assert repository.address == "http://…@127.0.0.1:9/models"
    with pytest.raises(RepositoryUnavailable) as raised:
        repository.models()
    assert "secret" not in str(raised.value)


def test_settings_take_folders_and_urls(tmp_path):
    folder = load_config(overrides={"models.repository": str(tmp_path)})
    assert folder.models.repository == tmp_path
    assert isinstance(configured_repository(folder), LocalRepository)
    url = load_config(
        env={"HOPLINE__MODELS__REPOSITORY": "memory://models", "HOPLINE__MODELS__CACHE": str(tmp_path)}
    )
    assert url.models.repository == "memory://models"
    assert isinstance(configured_repository(url), FsspecRepository)
    assert Config.from_json(url.to_json()) == url
    assert Config.from_json(folder.to_json()) == folder
    with pytest.raises(ConfigError, match=r"models\.repository: memory://models is a URL"):
        needed_folder(url, "models.repository")
    with pytest.raises(ConfigError, match=r"models\.repository: not set"):
        configured_repository(Config())


def test_a_full_cache_is_named_with_its_folder(tmp_path, monkeypatch):
    """Drivers report a full disk without the place."""
    repository = Memory(tmp_path)
    repository.put("m/1", version())

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    opened = repository.open()
    monkeypatch.setattr(type(repository.files), "get", full)
    with pytest.raises(ConfigError, match=rf"models.cache: {tmp_path}/cache/.*: No space left on device"):
        opened.fetch("m", "1")

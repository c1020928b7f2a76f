"""Files and folders appear whole or not at all, whatever fails, and wherever the writer is killed."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hopline import files
from hopline.errors import ConfigError
from hopline.files import (
    draft_of,
    expanded,
    is_draft,
    lock,
    locked,
    publish_file,
    publish_folder,
    remove_drafts,
    temporary_root,
    write_atomically,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def steps(monkeypatch):
    """What is asked of the disk, in order: ("fsync", inode) and ("replace" or "rename", inode)."""
    done = []
    fsync, replace, rename = os.fsync, os.replace, os.rename

    def synced(handle):
        done.append(("fsync", os.fstat(handle).st_ino))
        fsync(handle)

    def renamed(how, real):
        def work(old, new):
            done.append((how, os.stat(old).st_ino))
            real(old, new)

        return work

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed("replace", replace))
    monkeypatch.setattr(os, "rename", renamed("rename", rename))
    return done


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_made_and_replaced(tmp_path, durable):
    file = tmp_path / "state.json"
    for content in (b"first", b"second and longer", b""):
        write_atomically(file, content, durable=durable)
        assert file.read_bytes() == content
        assert names(tmp_path) == ["state.json"]


def test_a_durable_file_is_on_the_disk_before_its_name_and_its_name_before_the_end(tmp_path, steps):
    file = tmp_path / "state.json"
    write_atomically(file, b"content", durable=True)
    inode = file.stat().st_ino
    assert steps == [("fsync", inode), ("replace", inode), ("fsync", tmp_path.stat().st_ino)]


def test_a_file_that_need_not_be_durable_waits_for_no_disk(tmp_path, steps):
    file = tmp_path / "state.json"
    write_atomically(file, b"content", durable=False)
    assert steps == [("replace", file.stat().st_ino)]


def test_permissions_are_those_of_the_umask_or_those_requested(tmp_path):
    plain, secret = tmp_path / "plain", tmp_path / "secret"
    (tmp_path / "other").touch()
    write_atomically(plain, b"", durable=False)
    assert plain.stat().st_mode == (tmp_path / "other").stat().st_mode
    write_atomically(secret, b"", durable=False, mode=0o640)
    assert secret.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("step", ["fdopen", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_content_and_no_draft(tmp_path, monkeypatch, step):
    file = tmp_path / "state.json"
    file.write_bytes(b"old")

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device", "/some/draft")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="No space left") as raised:
        write_atomically(file, b"new", durable=True)
    monkeypatch.undo()
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(file))
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["state.json"]


def test_a_file_beyond_the_limit_of_the_kernel_leaves_the_old_content(tmp_path):
    file = tmp_path / "state.json"
    file.write_bytes(b"old")
    code = f"""
import resource
from pathlib import Path
from hopline.files import write_atomically
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_atomically(Path({str(file)!r}), bytes(1 << 20), durable=False)
except OSError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == f"[Errno 27] File too large: {str(file)!r}\n"
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["state.json"]


def test_a_refusal_names_the_file_that_was_requested(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError) as raised:
        write_atomically(tmp_path / "no" / "state.json", b"", durable=False)
    assert raised.value.filename == str(tmp_path / "no" / "state.json")

    def refused(*args):
        raise PermissionError(errno.EACCES, "Permission denied", str(args[0]))

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(PermissionError, match="Permission denied") as denied:
        write_atomically(tmp_path / "state.json", b"", durable=False)
    assert denied.value.filename == str(tmp_path / "state.json")


KILLED = """
import os, signal, sys
from pathlib import Path
from hopline.files import publish_folder, write_atomically

def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)

step, place = sys.argv[1], Path(sys.argv[2])
if step == "write":
    class Half:  # the second half never gets there
        def __init__(self, handle): self.handle = handle
        def __enter__(self): return self
        def __exit__(self, *args): pass
        def write(self, content): os.write(self.handle, content[: len(content) // 2]); die()
    os.fdopen = lambda handle, mode: Half(handle)
else:
    setattr(os, step, die)
write_atomically(place, b"new" * 1000, durable=True)
"""


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_writer_that_is_killed_leaves_the_old_content_whole(tmp_path, step):
    file = tmp_path / "state.json"
    file.write_bytes(b"old" * 1000)
    done = subprocess.run([sys.executable, "-c", KILLED, step, str(file)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert file.read_bytes() == b"old" * 1000
    left = [path for path in tmp_path.iterdir() if path != file]
    assert len(left) == 1
    assert is_draft(left[0])
    assert remove_drafts(tmp_path) == left
    assert names(tmp_path) == ["state.json"]


def test_a_writer_that_is_killed_before_its_first_write_leaves_no_file(tmp_path):
    file = tmp_path / "state.json"
    subprocess.run([sys.executable, "-c", KILLED, "write", str(file)], check=False)
    assert not file.exists()


def test_writers_of_one_name_do_not_disturb_each_other(tmp_path):
    file = tmp_path / "state.json"

    def write(content):
        for _ in range(50):
            write_atomically(file, content, durable=False)

    contents = [bytes([number]) * 10_000 for number in range(4)]
    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if file.exists():
            assert file.read_bytes() in contents
    for thread in threads:
        thread.join()
    assert file.read_bytes() in contents
    assert names(tmp_path) == ["state.json"]


@pytest.mark.parametrize("durable", [False, True])
def test_a_finished_draft_gets_its_name(tmp_path, steps, durable):
    draft, file = tmp_path / "half", tmp_path / "whole"
    file.write_bytes(b"old")
    draft.write_bytes(b"new")
    inode = draft.stat().st_ino
    publish_file(draft, file, durable=durable)
    assert file.read_bytes() == b"new"
    assert not draft.exists()
    around = [("fsync", inode)], [("fsync", tmp_path.stat().st_ino)]
    assert steps == ([*around[0], ("replace", inode), *around[1]] if durable else [("replace", inode)])


def folder_of(path, **contents):
    (path / "inner").mkdir(parents=True)
    for name, content in contents.items():
        (path / "inner" / name).write_text(content)
    return path


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_made_and_replaced_and_open_files_stay_readable(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda a, b: False)
    folder = tmp_path / "1"
    publish_folder(folder_of(draft_of(folder), a="old"), folder, durable=False)
    with (folder / "inner" / "a").open() as still_open:
        publish_folder(folder_of(draft_of(folder), b="new"), folder, durable=True)
        assert still_open.read() == "old"
    assert names(folder / "inner") == ["b"]
    assert names(tmp_path) == ["1"]


def test_all_of_a_durable_folder_is_on_the_disk_before_its_name(tmp_path, steps):
    folder = tmp_path / "1"
    draft = folder_of(draft_of(folder), a="x", b="y")
    inside = {path.stat().st_ino for path in (draft, *draft.rglob("*"))}
    publish_folder(draft, folder, durable=True)
    at = steps.index(("rename", folder.stat().st_ino))
    assert {inode for _, inode in steps[:at]} == inside
    assert steps[at + 1 :] == [("fsync", tmp_path.stat().st_ino)]


def test_a_folder_that_cannot_be_put_in_place_leaves_both_as_they_were(tmp_path, monkeypatch):
    folder = folder_of(tmp_path / "1", a="old")
    draft = folder_of(draft_of(folder), a="new")
    rename = os.rename

    def refused(old, new):
        if Path(old) == draft:
            raise PermissionError(errno.EACCES, "Permission denied", str(old))
        rename(old, new)

    monkeypatch.setattr(files, "_exchange", lambda a, b: False)
    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(PermissionError) as raised:
        publish_folder(draft, folder, durable=False)
    assert raised.value.filename == str(folder)
    assert (folder / "inner" / "a").read_text() == "old"
    assert (draft / "inner" / "a").read_text() == "new"
    assert names(tmp_path) == sorted(["1", draft.name])


def test_drafts_are_hidden_and_differ(tmp_path):
    drafts = {draft_of(tmp_path / "state.json") for _ in range(100)}
    assert len(drafts) == 100
    assert all(is_draft(draft) and draft.parent == tmp_path for draft in drafts)
    for path in (".state.json", "state.draft", "state.json"):
        assert not is_draft(tmp_path / path)


def test_temporary_files_fall_back_to_shared_memory_and_then_say_what_is_missing(monkeypatch, tmp_path):
    def none():
        raise FileNotFoundError("none")

    monkeypatch.setattr("tempfile.gettempdir", none)
    monkeypatch.setattr("hopline.files._SHARED_MEMORY", str(tmp_path))
    assert temporary_root() == str(tmp_path)
    monkeypatch.setattr("hopline.files._SHARED_MEMORY", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="mount a volume at /tmp, or set TMPDIR"):
        temporary_root()


def test_a_path_in_the_home_folder_of_a_user_without_one_is_refused_by_its_setting(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(expanded("~/models", "models.cache")) == "/home/someone/models"
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(ConfigError, match=r"models.cache: '~/models' .* has none: .*set HOME"):
        expanded("~/models", "models.cache")
    assert str(expanded("/srv/models", "models.cache")) == "/srv/models"


HOLDER = """
import fcntl, sys
file = open(sys.argv[1]) if sys.argv[2] == "shared" else open(sys.argv[1], "r+")
fcntl.flock(file, fcntl.LOCK_SH if sys.argv[2] == "shared" else fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("kind", "shared"), [("shared", True), ("shared", False), ("alone", True)])
def test_a_lock_is_the_kernels_and_free_when_its_holder_is_killed(tmp_path, kind, shared):
    """A process that knows flock(2), and nothing of this code, holds it."""
    path = tmp_path / "lock"
    path.touch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        with path.open("r+") as file:
            assert lock(file.fileno(), shared=shared, wait=False) is (kind == "shared" and shared)
        holder.kill()
        holder.wait()
        with path.open("r+") as file:
            assert lock(file.fileno(), wait=False)


def test_threads_take_turns_at_a_path(tmp_path):
    path = tmp_path / "made"
    inside, most = [], []

    def turn():
        for _ in range(20):
            with locked(path):
                inside.append(1)
                most.append(len(inside))
                os.sched_yield()
                inside.pop()

    threads = [threading.Thread(target=turn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1}


def test_a_lock_of_a_folder_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), locked(tmp_path / "no" / "lock"):
        pass

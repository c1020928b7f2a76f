"""What a kernel is compiled from: its file and what it imports, of its package and of Hopline."""

from hopline.kernels import code_stamp
from hopline.kernels.code_stamp import stamp_of


def test_a_module_of_another_package_is_made_of_hoplines_files_too(tmp_path, monkeypatch):
    ours, theirs = tmp_path / "a" / "hopline", tmp_path / "b" / "other"
    for folder in (ours, theirs):
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    (ours / "base.py").write_text("from hopline.deeper import x\n")
    (ours / "deeper.py").write_text("x = 1\n")
    (ours / "unused.py").write_text("y = 1\n")
    kernel = theirs / "kernel.py"
    kernel.write_text("import numpy\nfrom hopline.base import x\nfrom other import near\n")
    (theirs / "near.py").write_text("z = 1\n")
    monkeypatch.setattr(code_stamp, "__file__", str(ours / "base.py"))

    def stamp():
        code_stamp._read.cache_clear()
        return stamp_of(str(kernel))

    last = stamp()
    for changed in (ours / "deeper.py", theirs / "near.py", ours / "base.py", kernel):
        changed.write_text(changed.read_text() + "# changed\n")
        now = stamp()
        assert now != last
        last = now
    (ours / "unused.py").write_text("y = 2\n")
    assert stamp() == last
    code_stamp._read.cache_clear()

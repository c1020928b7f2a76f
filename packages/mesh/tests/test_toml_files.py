"""Numbers and nesting that Python's TOML parser does not refuse, in every file that the watch reads."""

import pytest

from hopline.errors import HoplineError
from hopline_mesh.collect.query_file import read_query_file
from hopline_mesh.evaluate.folder import read_folder
from hopline_mesh.settings import load_settings
from packages.mesh.tests.evaluate.files import files


def recording(file):
    return read_folder(files(file.parent))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = " + "9" * 5000, "64 bits"),
        ("name = 0x" + "f" * 5000, "64 bits"),
        ("name = " + "[" * 20_000, "nested too deeply"),
        (".".join("a" * 3000) + " = 1", "nested too deeply"),
    ],
    ids=["digits", "hexadecimal", "nesting", "dotted keys"],
)
@pytest.mark.parametrize("read", [load_settings, read_query_file, recording])
def test_every_file_is_named_by_its_own_error(tmp_path, read, text, says):
    file = tmp_path / "mesh.toml"
    file.write_text(text)
    with pytest.raises(HoplineError, match=rf"mesh\.toml.* valid TOML: .*{says}"):
        read(file)

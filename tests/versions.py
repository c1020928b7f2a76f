"""Versions of models as repositories see them: files and a model.json that lists them."""

import hashlib
import json

FILES = {"layers/1.onnx": b"first layer", "layers/2.onnx": b"second layer", "head.onnx": b"head"}


def manifest(files, **more):
    listed = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return json.dumps({"name": "risk", "files": listed, **more}).encode()


def version(files=FILES, **more):
    """path -> bytes of a whole version."""
    return {**files, "model.json": manifest(files, **more)}


def write(folder, contents):
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def read(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }

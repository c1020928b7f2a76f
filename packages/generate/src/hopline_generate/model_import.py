"""Makes a version of a generative model: from a GGUF file, an OpenVINO folder, a URL, or an upstream.

The model is loaded and generates a text before the version appears in the repository.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import orjson

from hopline import __version__
from hopline.artifact import write_spec
from hopline.config.schema import Config
from hopline.errors import ArtifactError, ConfigError, HoplineError
from hopline.packaging.folder import check_place, new_version
from hopline.remote_address import is_address, open_address
from hopline_generate.engine import EngineSettings
from hopline_generate.gguf import quantisation, read_gguf
from hopline_generate.link import ProcessLink, try_once
from hopline_generate.process import Orders
from hopline_generate.request import Prompt, Sampling
from hopline_generate.runner import RunnerSettings
from hopline_generate.spec import GenerativeSpec

_LICENCES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "COPYING")
_MODEL_FILE = "openvino_model.xml"
#: The text that is generated to try a model.
_TRIED = '[{"role": "user", "content": "Hello"}]'
_SAMPLING = Sampling(max_tokens=4, temperature=0.0)


@dataclass(frozen=True, slots=True)
class Import:
    """Source and destination of an import.

    Attributes:
        source: a .gguf file, a folder with openvino_model.xml, or a URL of either.
        chat_template: replaces that of the model; "" keeps it.
        links: make hard links to the files where the file system can, instead of copies.
        tries: load the model and generate a text first.
    """

    source: str
    repository: Path
    name: str
    version: str
    chat_template: str = ""
    licence: str = ""
    links: bool = False
    tries: bool = True


def import_model(job: Import) -> GenerativeSpec:
    """Make the version.

    Raises:
        ArtifactError: it is no model, or the engine does not load it; the message says why.
        PackagingError: the version exists, or its name cannot be one.
    """
    check_place(job.repository, job.name, job.version, overwrite=False)
    with _local(job.source) as source:
        spec = _described(job, source)
        if job.tries:
            asyncio.run(_try(source, spec))
        with new_version(job.repository, job.name, job.version, overwrite=False) as place:
            _bring(source, place.folder, spec, links=job.links)
            return write_spec(place.folder, spec)


def import_upstream(
    repository: Path, name: str, version: str, url: str, model: str, api_key_env: str = "", context: int = 0
) -> GenerativeSpec:
    """Make a version whose texts another server generates, which speaks OpenAI's protocol.

    Args:
        url: up to and including /v1.
        model: as that server calls it; "" takes `name`.
        api_key_env: environment variable of the Hopline server with the key; "" sends none.
        context: tokens of prompt and answer; 0 leaves the check to that server.

    Raises: ConfigError, PackagingError: what cannot be used.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--upstream: {url!r} is no http:// or https:// URL")
    spec = GenerativeSpec(
        name,
        version,
        "openai",
        url=url.rstrip("/"),
        upstream_model=model or name,
        api_key_env=api_key_env,
        context_tokens=context,
        producer={"hopline": __version__},
    )
    with new_version(repository, name, version, overwrite=False) as place:
        return write_spec(place.folder, spec)


@contextmanager
def _local(source: str) -> Iterator[Path]:
    """The source as a local path; what a URL names is downloaded for the time of the import."""
    if not is_address(source):
        path = Path(source)
        if not path.exists():
            raise ArtifactError(f"{source}: does not exist")
        yield path
        return
    files, root = open_address(source, "SOURCE")
    with tempfile.TemporaryDirectory(prefix="hopline-import-") as folder:
        target = Path(folder) / (root.rstrip("/").rpartition("/")[2] or "model")
        try:
            if root.endswith(".gguf"):
                files.copy(root, target)
            else:
                files.copy_folder(root, str(target))
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{source}: cannot be downloaded: {error}") from None
        yield target


def _described(job: Import, source: Path) -> GenerativeSpec:
    values: dict[str, Any]
    if source.is_dir():
        if not (source / _MODEL_FILE).is_file():
            raise ArtifactError(
                f"{source}: holds no {_MODEL_FILE}; an OpenVINO folder, as `optimum-cli export openvino` "
                "makes one, or a .gguf file is needed"
            )
        values = _of_folder(source)
    else:
        values = _of_gguf(source)
    if job.licence:
        values["licence"] = job.licence
    if job.chat_template:
        values |= {"chat_template": job.chat_template, "sets_template": True}
    return GenerativeSpec(job.name, job.version, "openvino", producer={"hopline": __version__}, **values)


def _of_gguf(file: Path) -> dict[str, Any]:
    found = read_gguf(file)
    metadata = found.metadata
    architecture = str(metadata.get("general.architecture", ""))
    return {
        "model": "model.gguf",
        "context_tokens": found.number(f"{architecture}.context_length"),
        "architecture": architecture,
        "quantisation": quantisation(metadata),
        "parameters": found.num_parameters,
        "chat_template": str(metadata.get("tokenizer.chat_template", "")),
        "licence": str(metadata.get("general.license", "")),
    }


def _of_folder(folder: Path) -> dict[str, Any]:
    def read(name: str) -> dict[str, Any]:
        file = folder / name
        try:
            found = orjson.loads(file.read_bytes()) if file.is_file() else {}
        except orjson.JSONDecodeError as error:
            raise ArtifactError(f"{file}: not valid JSON: {error}") from None
        return found if isinstance(found, dict) else {}

    config, tokenizer, openvino = (
        read(name) for name in ("config.json", "tokenizer_config.json", "openvino_config.json")
    )
    template = tokenizer.get("chat_template") or ""
    licences = [folder / name for name in _LICENCES if (folder / name).is_file()]
    return {
        "model": "model",
        "context_tokens": _number(config.get("max_position_embeddings")),
        "architecture": str(config.get("model_type") or ""),
        "quantisation": str(openvino.get("dtype") or ""),
        "chat_template": template if isinstance(template, str) else "",
        "licence": licences[0].read_text(errors="replace") if licences else "",
    }


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


async def _try(source: Path, spec: GenerativeSpec) -> None:
    """Have a process load the model and generate a text: a damaged model may crash its engine."""
    orders = Orders(
        name=str(source),
        socket="",
        engine=spec.engine,
        model=str(source.absolute()),
        settings=EngineSettings(
            kv_tokens=1024,
            context_tokens=spec.context_tokens,
            chat_template=spec.chat_template if spec.sets_template else "",
        ),
        limits=RunnerSettings(),
        config=Config().to_json(),
        ready=0,
    )
    prompt = Prompt("" if spec.chat_template else "Hello", _TRIED if spec.chat_template else "", _SAMPLING)
    link = ProcessLink(orders, Config())
    await link.start()
    try:
        await try_once(link, prompt)
    except HoplineError as error:
        raise ArtifactError(f"{source}: generates no text: {error}") from None
    finally:
        await link.close()


def _bring(source: Path, folder: Path, spec: GenerativeSpec, *, links: bool) -> None:
    def copy(file: str, target: str) -> str:
        if links:
            try:
                os.link(Path(file).resolve(), target)
                return target
            except OSError:  # another file system
                pass
        return shutil.copyfile(file, target)

    if source.is_dir():
        shutil.copytree(source, folder / spec.model, copy_function=copy)
    else:
        copy(str(source), str(folder / spec.model))
    if spec.licence:
        (folder / "LICENCE").write_text(spec.licence + "\n")


def summary(spec: GenerativeSpec) -> dict[str, Any]:
    """Report that the command prints: all but texts and hashes."""
    found = msgspec.to_builtins(spec)
    for name in ("files", "chat_template", "licence"):
        found.pop(name)
    return {name: value for name, value in found.items() if value not in ("", 0, False)}

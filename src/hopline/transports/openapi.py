"""The OpenAPI 3.1 description of the HTTP API, from its operations (spec.openapis.org/oas/v3.1.1)."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hopline import __version__
from hopline.config.schema import Config
from hopline.models.kinds import MODEL_KINDS
from hopline.transports import http_answers
from hopline.transports.http_errors import encode_json
from hopline.transports.http_operations import BINARY, JSON, Operation
from hopline.transports.pages import api_page

_REF = "#/components/schemas/{name}"
#: Statuses of all routes: requests that are not valid HTTP, or arrive too slowly, and failures.
_ALWAYS = (400, 408, 413, 417, 431, 500, 501, 503, 505)
#: Statuses of routes that need credentials.
_GUARDED = (401, 403, 429)
_STATUSES = {
    200: "Success.",
    400: "The request is invalid.",
    401: "Credentials are missing or invalid.",
    403: "The client lacks the permission.",
    404: "The model, version or node does not exist.",
    408: "The request did not arrive in time.",
    409: "The present state does not allow the change.",
    413: "The request is too large.",
    415: "The content encoding is not supported.",
    417: "The expectation is not supported.",
    422: "The artifact cannot be served.",
    429: "The client's rate is exceeded.",
    431: "The head of the request is too large.",
    500: "The server failed.",
    501: "The method or transfer encoding is not supported.",
    503: "The server cannot answer now.",
    504: "The deadline passed.",
    505: "The HTTP version is not supported.",
}
_RETRY = {
    401: ("www-authenticate",),
    415: ("accept-encoding",),
    429: ("retry-after",),
    503: ("retry-after",),
}
_TEXT: dict[str, Any] = {"type": "string"}
_HEADERS: dict[str, dict[str, Any]] = {
    "x-request-id": {"description": "Id of the request, in logs.", "schema": _TEXT},
    "hopline-error": {"description": "Name of the error.", "schema": _TEXT},
    "retry-after": {"description": "Seconds until a retry.", "schema": {"type": "integer"}},
    "www-authenticate": {"description": "How to authenticate.", "schema": _TEXT},
    "accept-encoding": {"description": "Supported content encodings.", "schema": _TEXT},
}
_PARAMETERS: dict[str, dict[str, Any]] = {
    "model": {"in": "path", "required": True, "description": "Name of a model or pipeline."},
    "version": {"in": "path", "required": True, "description": "A version of the model."},
    "node_type": {"in": "path", "required": True, "description": "A node type: `node` if there is one."},
    "node": {"in": "path", "required": True, "description": "Id of a node."},
    "timeout-ms": {
        "in": "header",
        "description": "Time limit of the answer, milliseconds.",
        "schema": {"type": "number", "exclusiveMinimum": 0},
    },
    "inference-header-content-length": {
        "in": "header",
        "description": "Length of the JSON part of a binary body, bytes.",
        "schema": {"type": "integer", "minimum": 0},
    },
}
_SCHEMES = {
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key or a JSON Web Token."},
}
_CERTIFICATES = {"certificate": {"type": "mutualTLS", "description": "A client certificate."}}
_ERROR, _OIP_ERROR = http_answers.Error.__name__, http_answers.InferenceError.__name__
_ATTRIBUTE = re.compile(r"^    (?P<names>\w+(?:, \w+)*): (?P<text>.*)$")


class Description:
    """The description of a server's HTTP API."""

    def __init__(self, operations: Sequence[Operation], config: Config) -> None:
        self._operations = operations
        self._config = config

    @functools.cached_property
    def document(self) -> dict[str, Any]:
        """The OpenAPI document."""
        return describe(self._operations, self._config)

    @functools.cached_property
    def json(self) -> bytes:
        """The document as JSON."""
        return encode_json(self.document)

    @functools.cached_property
    def page(self) -> bytes:
        """The document as an HTML page."""
        return api_page(self.document)


def describe(operations: Sequence[Operation], config: Config) -> dict[str, Any]:
    """Return the OpenAPI document of operations."""
    is_open = config.auth.open_metrics
    schemes = _SCHEMES if config.tls.client_ca_file is None else _SCHEMES | _CERTIFICATES
    secured = config.authenticates
    kinds = [*dict.fromkeys(kind for each in operations for kind in (*_all(each.body), *_all(each.answer)))]
    errors = [http_answers.Error, http_answers.InferenceError]
    found, components = msgspec.json.schema_components([*kinds, *errors], ref_template=_REF)
    schemas = dict(zip([*kinds, *errors], map(_explained, found), strict=True))
    model_kinds = sorted(["link", "node", *MODEL_KINDS.installed()])
    components["ModelInfo"]["properties"]["kind"] = {"enum": model_kinds}
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        guarded = secured and each.required != "open" and not (each.id == "metrics" and is_open)
        for number, path in enumerate(each.paths):
            described = _operation(each, path, schemas, schemes if guarded else {})
            described["operationId"] = f"{each.id}_version" if number else each.id
            paths.setdefault(path, {})[each.method.lower()] = described
    document = {
        "openapi": "3.1.1",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": "Hopline",
            "version": __version__,
            "summary": "Scores of graph neural networks.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name} for name in dict.fromkeys(each.tag for each in operations)],
        "paths": paths,
        "components": {
            "schemas": {name: _explained(schema) for name, schema in components.items()},
            "responses": _errors(),
            "headers": _HEADERS,
        }
        | ({"securitySchemes": schemes} if secured else {}),
    }
    plain: dict[str, Any] = msgspec.json.decode(encode_json(document))  # without tuples
    return plain


def _operation(
    operation: Operation, path: str, schemas: dict[Any, Any], schemes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an Operation Object; `schemes` are the credentials that it needs, one of them."""
    described: dict[str, Any] = {"tags": [operation.tag], "summary": operation.summary}
    if parameters := list(_parameters(operation, path)):
        described["parameters"] = parameters
    if operation.body is not None:
        content = {
            media: {"schema": _one_of(operation.body, schemas) if media == JSON else {}}
            for media in operation.body_types
        }
        if operation.example is not None:
            content[JSON]["example"] = operation.example
        described["requestBody"] = {"required": operation.body_required, "content": content}
    if schemes:
        roles = [] if operation.required == "any" else [operation.required]
        described["security"] = [{name: roles} for name in schemes]
    statuses = {*_ALWAYS, *operation.statuses}
    statuses |= {404} if "{model}" in operation.path or operation.names_model else set()
    statuses |= {504} if operation.timed else set()
    statuses |= {415} if operation.body is not None else set()
    statuses |= set(_GUARDED) if schemes else set()
    error = _OIP_ERROR if operation.is_oip else _ERROR
    responses = {"200": _answer(operation, schemas)}
    for status in sorted(statuses):
        responses[str(status)] = {"$ref": f"#/components/responses/{error}{status}"}
    if operation.negative:
        both = [_one_of(operation.answer, schemas), {"$ref": _REF.format(name=error)}]
        responses["503"] = _response(503, {JSON: {"schema": {"anyOf": both}}}, _headers(503))
    described["responses"] = responses
    return described


def _errors() -> dict[str, Any]:
    """Return the responses to requests that fail, by form of error and status."""
    return {
        f"{error}{status}": _response(
            status, {JSON: {"schema": {"$ref": _REF.format(name=error)}}}, _headers(status)
        )
        for error in (_ERROR, _OIP_ERROR)
        for status in _STATUSES
        if status != 200
    }


def _headers(status: int) -> tuple[str, ...]:
    return ("x-request-id", "hopline-error", *_RETRY.get(status, ()))


def _answer(operation: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for media in operation.answer_types:
        if media == JSON:
            content[media] = {"schema": _one_of(operation.answer, schemas)}
        else:
            content[media] = {} if media == BINARY else {"schema": _TEXT}
    return _response(200, content, ("x-request-id",))


def _response(status: int, content: dict[str, Any], headers: Iterable[str]) -> dict[str, Any]:
    return {
        "description": _STATUSES[status],
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in headers},
        "content": content,
    }


def _parameters(operation: Operation, path: str) -> Iterator[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", path)
    names += ["timeout-ms"] if operation.timed else []
    names += ["inference-header-content-length"] if BINARY in operation.body_types else []
    for name in names:
        yield {"name": name, "schema": {"type": "string", "minLength": 1}} | _PARAMETERS[name]


def _all(kind: Any) -> tuple[Any, ...]:
    """Return the alternatives of a type."""
    if kind is None:
        return ()
    return kind if isinstance(kind, tuple) else (kind,)


def _one_of(kind: Any, schemas: dict[Any, Any]) -> dict[str, Any]:
    found = [schemas[each] for each in _all(kind)]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _explained(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose docstring became descriptions: of itself and of its properties."""
    schema = dict(schema)
    head, _, attributes = inspect.cleandoc(schema.get("description", "")).partition("\n\nAttributes:\n")
    if head:
        schema["description"] = " ".join(head.split())
    properties = {  # what may only be null is accepted, and useless
        name: dict(each)
        for name, each in schema.get("properties", {}).items()
        if each.get("type") != "null"
    }
    last: list[str] = []
    for line in attributes.splitlines():
        if found := _ATTRIBUTE.match(line):
            last = [name for name in found["names"].split(", ") if name in properties]
            for name in last:
                properties[name]["description"] = found["text"]
        elif not line.strip():
            last = []
        for name in last if not found else ():
            properties[name]["description"] += f" {line.strip()}"
    if properties:
        schema["properties"] = properties
    return schema

"""The gRPC server reflection protocol, versions 1 and 1alpha: which services and messages there are.

Answers come from the descriptor set of this package, so that clients such as grpcurl need no .proto files.
The requests of a call are answered in order, as those of `InferStream`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from hopline.errors import HoplineError, public_text
from hopline.transports.grpc_request import parsed
from hopline.transports.grpc_stream import Offer, Steps
from hopline.transports.proto import message, pool
from hopline.types import Deliver, ScoreResult, Ticket

SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
#: Status codes of error answers.
_INVALID_ARGUMENT, _NOT_FOUND = 3, 5


class _Question(NamedTuple):
    """A request, and its own ticket; `id` is empty, since reflection has none."""

    request: Any
    id: str = ""

    def cancel(self) -> None:
        """Do nothing: the request is answered already."""


class Reflection:
    """Answers the requests of one version of the protocol.

    Args:
        service: full name of that version's service.
        listed: names of all services.
        counted: called for each answer.
    """

    def __init__(self, service: str, listed: Sequence[str], counted: Callable[[], None]) -> None:
        package = service.rpartition(".")[0]
        self._request = message(f"{package}.ServerReflectionRequest")
        self._response = message(f"{package}.ServerReflectionResponse")
        self._listed = sorted(listed)
        self._counted = counted
        self._find = {
            "list_services": self._services,
            "file_by_filename": lambda name: _files(pool().FindFileByName(name)),
            "file_containing_symbol": self._symbol,
            "file_containing_extension": self._extension,
            "all_extension_numbers_of_type": self._extension_numbers,
        }

    def steps(self) -> Steps:
        """Return the steps of answering a request of a call."""
        return Steps(self._read, lambda request: None, lambda request: request, self._submit, self._respond)

    def _read(self, data: bytes) -> _Question:
        return _Question(parsed(self._request, data))

    def _submit(self, question: _Question, same: Any, deliver: Deliver, offer: Offer) -> Ticket:
        deliver(self._answer(question.request))
        return question

    def _respond(self, question: Any, outcome: ScoreResult | HoplineError) -> bytes:
        fields: Any = outcome
        if isinstance(outcome, HoplineError):
            fields = _error(_INVALID_ARGUMENT, public_text(str(outcome)))
        request = question.request
        response = self._response(valid_host=request.host, original_request=request, **fields)
        self._counted()
        encoded: bytes = response.SerializeToString()
        return encoded

    def _answer(self, request: Any) -> dict[str, Any]:
        """Return the fields of the response."""
        kind = request.WhichOneof("message_request")
        if kind is None:
            return _error(_INVALID_ARGUMENT, "the request asks for nothing")
        try:
            found: dict[str, Any] = self._find[kind](getattr(request, kind))
        except KeyError:
            return _error(_NOT_FOUND, f"{kind}: not found")
        return found

    def _services(self, _: str) -> dict[str, Any]:
        return {"list_services_response": {"service": [{"name": name} for name in self._listed]}}

    def _symbol(self, name: str) -> dict[str, Any]:
        try:
            file = pool().FindFileContainingSymbol(name)
        except KeyError:  # it does not look for methods
            file = pool().FindMethodByName(name).containing_service.file
        return _files(file)

    def _extension(self, question: Any) -> dict[str, Any]:
        containing = pool().FindMessageTypeByName(question.containing_type)
        return _files(pool().FindExtensionByNumber(containing, question.extension_number).file)

    def _extension_numbers(self, name: str) -> dict[str, Any]:
        found = pool().FindAllExtensions(pool().FindMessageTypeByName(name))
        numbers = sorted(extension.number for extension in found)
        return {"all_extension_numbers_response": {"base_type_name": name, "extension_number": numbers}}


def _error(code: int, text: str) -> dict[str, Any]:
    return {"error_response": {"error_code": code, "error_message": text}}


def _files(file: Any) -> dict[str, Any]:
    """Return a file and all files that it imports, each once."""
    found = {each.name: each.serialized_pb for each in _imported(file)}
    return {"file_descriptor_response": {"file_descriptor_proto": list(found.values())}}


def _imported(file: Any) -> Iterator[Any]:
    yield file
    dependencies: Iterable[Any] = file.dependencies
    for each in dependencies:
        yield from _imported(each)

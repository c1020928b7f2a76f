"""Message classes of the .proto files beside this one, and of other descriptor sets.

Made at run time from `descriptors.binpb` (written by `scripts/protos`), not from generated Python, for
two reasons: generated code is refused by Protobuf runtimes two major versions newer, while a descriptor
set is not; and the classes live in a pool of their own, so that a process may also import tritonclient,
whose messages bear the same names.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool

DESCRIPTORS = Path(__file__).with_name("descriptors.binpb")


@cache
def pool(descriptors: Path = DESCRIPTORS) -> Any:
    """The descriptor pool of all files of a descriptor set."""
    own = DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes()).file:
        own.Add(file)
    return own


@cache
def message(name: str, descriptors: Path = DESCRIPTORS) -> Any:
    """The class of a message, by its full name ("inference.ModelInferRequest").

    Raises: KeyError: no such message.
    """
    return message_factory.GetMessageClass(pool(descriptors).FindMessageTypeByName(name))


def methods(service: str, descriptors: Path = DESCRIPTORS) -> list[Any]:
    """Method descriptors of a service, by its full name."""
    return list(pool(descriptors).FindServiceByName(service).methods)

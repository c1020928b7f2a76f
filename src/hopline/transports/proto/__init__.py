"""Message classes of the .proto files in this folder, and of other descriptor sets.

The classes are created at run time from `descriptors.binpb` (written by `scripts/protos`), not from
generated Python, for two reasons. Protobuf runtimes two major versions newer refuse generated code but not
a descriptor set. And the classes are in a separate pool, so that a process may also import tritonclient,
whose messages have the same names.
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
    """Return a descriptor pool with all files of a descriptor set."""
    own = DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes()).file:
        own.Add(file)
    return own


@cache
def message(name: str, descriptors: Path = DESCRIPTORS) -> Any:
    """Return the class of a message by its full name ("inference.ModelInferRequest").

    Raises: KeyError: no such message.
    """
    return message_factory.GetMessageClass(pool(descriptors).FindMessageTypeByName(name))


def methods(service: str, descriptors: Path = DESCRIPTORS) -> list[Any]:
    """Return the method descriptors of a service by its full name."""

    return list(pool(descriptors).FindServiceByName(service).methods)

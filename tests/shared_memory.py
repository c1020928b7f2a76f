"""Memory that tests share between processes, as a server's parent makes it."""

import mmap
import os


def create_shared(num_bytes=0):
    """A new memfd of `num_bytes`, inheritable by child processes; returns its descriptor."""
    fd = os.memfd_create("hopline-shared", 0)
    os.ftruncate(fd, -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
    return fd

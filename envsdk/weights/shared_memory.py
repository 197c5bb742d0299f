"""Buffers in memory that other processes of the machine map.

    owner: buffer -> filled -> place ==any message==> reader: mapped -> the same bytes

The memory has no name in the file system (memfd): the last process that has it open ends it, however that
process ends.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

import numpy as np

from envsdk.weights.buckets import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlace:
    """Where a reader finds a buffer."""

    path: str
    """Path of the memory, in its owner's `/proc`."""
    offset: int
    """First byte of the buffer in it."""
    num_bytes: int
    """Bytes of the buffer."""


class SharedMemory:
    """Buffers of one size, made when they are first asked for. Owner: one process, until `close`."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: bytes of each buffer."""
        self._capacity = capacity
        self._stride = -(-capacity // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self._fd = os.memfd_create("envsdk-weights", os.MFD_CLOEXEC)
        self._buffers: list[Buffer] = []

    def buffer(self, number: int) -> Buffer:
        """Buffer `number`, the same at each call."""
        while len(self._buffers) <= number:
            offset = len(self._buffers) * self._stride
            os.ftruncate(self._fd, offset + self._stride)  # takes no memory before it is written to
            mapping = mmap.mmap(self._fd, self._stride, offset=offset)
            self._buffers.append(np.frombuffer(mapping, np.uint8)[: self._capacity])
        return self._buffers[number]

    def place(self, number: int) -> SharedPlace:
        """For `mapped` in a process of this machine."""
        path = f"/proc/{os.getpid()}/fd/{self._fd}"
        return SharedPlace(path=path, offset=number * self._stride, num_bytes=self._capacity)

    def close(self) -> None:
        """Idempotent. Readers keep what they have mapped."""
        self._buffers.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def mapped(place: SharedPlace, *, writable: bool = False) -> Buffer:
    """The buffer, valid for as long as it is held. OSError when its owner has closed it or ended."""
    with open(place.path, "r+b" if writable else "rb") as file:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        mapping = mmap.mmap(file.fileno(), place.num_bytes, access=access, offset=place.offset)
    return np.frombuffer(mapping, np.uint8)

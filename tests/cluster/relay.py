"""A slow link that loses frames: `python relay.py INTERFACE INTERFACE DELAY_S LOSS`, until its input ends.

Copies each Ethernet frame from one interface to the other after a delay, or drops it with probability LOSS;
needs CAP_NET_RAW. For kernels without netem. Offloads must be off: frames of 64 kB do not pass.
"""

from __future__ import annotations

import array
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import sys
import time
from contextlib import suppress

ALL_PROTOCOLS = socket.htons(3)
PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC = 1, 1
SOL_PACKET, PACKET_OUTGOING = 263, 4
SIOCETHTOOL = 0x8946
SET_TX_CHECKSUM, SET_TSO, SET_GSO = 0x17, 0x1F, 0x24
LONGEST_FRAME = 70_000


def turn_offloads_off(interface: str) -> None:
    """What `ethtool -K INTERFACE tx off tso off gso off` does."""
    with socket.socket() as control:
        for command in (SET_TX_CHECKSUM, SET_TSO, SET_GSO):
            value = array.array("B", struct.pack("II", command, 0))
            request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
            fcntl.ioctl(control, SIOCETHTOOL, request)


def listen(interface: str) -> socket.socket:
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, ALL_PROTOCOLS)
    link.bind((interface, 3))
    link.setblocking(False)
    promiscuous = struct.pack("iHH8s", socket.if_nametoindex(interface), PACKET_MR_PROMISC, 0, b"")
    link.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, promiscuous)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    return link


def relay(first: socket.socket, second: socket.socket, delay_s: float, loss: float) -> None:
    draw = random.Random(0)
    waiting: list[tuple[float, int, socket.socket, bytes]] = []
    number = 0
    while True:
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([first, second, 0], [], [], patience)
        if 0 in ready and not os.read(0, 1):
            return
        for link in ready:
            while isinstance(link, socket.socket):
                try:
                    frame, address = link.recvfrom(LONGEST_FRAME)
                except OSError:
                    break  # nothing there, or the link is down
                if address[2] != PACKET_OUTGOING and draw.random() >= loss:
                    number += 1
                    other = second if link is first else first
                    heapq.heappush(waiting, (time.monotonic() + delay_s, number, other, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, link, frame = heapq.heappop(waiting)
            with suppress(OSError):  # the link is down, or the queue is full: a lost frame
                link.send(frame)


def main() -> None:
    if sys.argv[1] == "offloads-off":
        turn_offloads_off(sys.argv[2])
        return
    first, second = (listen(interface) for interface in sys.argv[1:3])
    relay(first, second, float(sys.argv[3]), float(sys.argv[4]))


if __name__ == "__main__":
    main()

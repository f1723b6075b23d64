"""A client of NBD of the kernel that connects again after the end of its server, as storage daemons have it.

nbd-client cannot do that (versions 3.24 to 3.26): requests fail while there is no connection. The kernel's own interface
has them wait (`NBD_ATTR_DEAD_CONN_TIMEOUT`), and takes new sockets (`NBD_CMD_RECONFIGURE`).
"""

import os
import socket
import struct
import time

from quota_rig import PATIENCE

# <linux/netlink.h>, <linux/genetlink.h>, <linux/nbd-netlink.h>
GENERIC, REQUEST, ACK, ERROR, NESTED, SOL_NETLINK = 16, 1, 4, 2, 0x8000, 270
CONTROL, GET_FAMILY, FAMILY_ID, FAMILY_NAME, GROUPS, GROUP_NAME, GROUP_ID = 16, 3, 1, 2, 7, 1, 2
ADD_MEMBERSHIP = 1
CONNECT, DISCONNECT, RECONFIGURE, LINK_DEAD = 1, 2, 3, 4
INDEX, SIZE_BYTES, BLOCK_SIZE, TIMEOUT, SERVER_FLAGS, SOCKETS, DEAD_TIMEOUT = 1, 2, 3, 4, 5, 7, 8
# Seconds that requests wait for a connection, and after which those of a dead connection are sent again.
WAIT, AGAIN = 120, 20


def attribute(kind, value):
    if isinstance(value, int):
        value = struct.pack("=I" if kind == INDEX else "=Q", value)
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def sockets(fds):
    items = [attribute(1 | NESTED, struct.pack("=HHI", 8, 1, fd)) for fd in fds]
    return attribute(SOCKETS | NESTED, b"".join(items))


def attributes(data):
    """Returns the attributes by their kind."""
    found, at = {}, 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        found[kind & ~NESTED] = data[at + 4:at + length]
        at += (length + 3) // 4 * 4
    return found


class Netlink:
    """The interface of the kernel's client. It receives the messages of a group, if one is named."""

    def __init__(self, group=None):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, GENERIC)
        self.socket.bind((0, 0))
        self.family = CONTROL
        reply = self.call(GET_FAMILY, attribute(FAMILY_NAME, b"nbd\0"))
        family = attributes(reply[20:struct.unpack_from("=I", reply)[0]])
        self.family = struct.unpack("=H", family[FAMILY_ID])[0]
        for item in map(attributes, attributes(family[GROUPS]).values()) if group else ():
            if item[GROUP_NAME].rstrip(b"\0") == group.encode():
                number = struct.unpack("=I", item[GROUP_ID])[0]
                self.socket.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, number)

    def wait(self, command):
        """Waits for a message of the group that has this command."""
        while True:
            message = self.socket.recv(65536)
            if len(message) > 16 and message[16] == command:
                return

    def call(self, command, given):
        """Sends a command with attributes, and returns the first message of the reply."""
        body = struct.pack("=BBH", command, 1, 0) + given
        self.socket.send(struct.pack("=IHHII", 16 + len(body), self.family, REQUEST | ACK, 1, 0) + body)
        first = None
        while True:
            message = self.socket.recv(65536)
            first = first or message
            length, kind = struct.unpack_from("=IH", message)
            # The acknowledgement may stand behind the reply.
            for part in (message, message[length:]):
                if len(part) >= 20 and struct.unpack_from("=IH", part)[1] == ERROR:
                    status = struct.unpack_from("=i", part, 16)[0]
                    if status:
                        raise OSError(-status, os.strerror(-status))
                    return first


class Device:
    """/dev/nbd0 with a number of connections to a server."""

    def __init__(self, host, port, name, connections):
        self.address, self.name, self.connections = (host, port), name, connections
        self.netlink = Netlink()

    def attach(self):
        opened = [self.open() for _ in range(self.connections)]
        _, size, flags = opened[0]
        words = [(INDEX, 0), (SIZE_BYTES, size), (BLOCK_SIZE, 512), (SERVER_FLAGS, flags), (TIMEOUT, AGAIN),
                 (DEAD_TIMEOUT, WAIT)]
        self.configure(CONNECT, words, opened)

    def attach_again(self):
        self.configure(RECONFIGURE, [(INDEX, 0)], [self.open() for _ in range(self.connections)])

    def detach(self):
        self.netlink.call(DISCONNECT, attribute(INDEX, 0))

    def configure(self, command, words, opened):
        given = b"".join(attribute(*word) for word in words)
        self.netlink.call(command, given + sockets([client.fileno() for client, _, _ in opened]))
        # The kernel has its own references.
        for client, _, _ in opened:
            client.close()

    def open(self):
        """Returns a negotiated connection, the size of the volume, and its flags (NBD_OPT_GO, simple replies)."""
        client = self.connect()
        self.receive(client, 18)
        name = self.name.encode()
        data = struct.pack(">I", len(name)) + name + bytes(2)
        client.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 7, len(data)) + data)
        size, flags = None, None
        while True:
            kind, length = struct.unpack(">12xII", self.receive(client, 20))
            data = self.receive(client, length)
            if kind == 1:
                client.settimeout(None)
                return client, size, flags
            if kind != 3:
                raise OSError(f"the server refuses the volume: {data}")
            if data[:2] == b"\0\0":
                size, flags = struct.unpack_from(">QH", data, 2)

    def connect(self):
        """Connects to the server, which may still be starting."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return socket.create_connection(self.address, PATIENCE)
            except ConnectionRefusedError:
                if time.monotonic() > end:
                    raise
            time.sleep(0.02)

    @staticmethod
    def receive(client, length):
        data = b""
        while len(data) < length:
            part = client.recv(length - len(data))
            if not part:
                raise OSError("the server ended the connection")
            data += part
        return data

"""Clients that only hold connections of an HTTPS server: idle ones, and ones that read or send a kilobyte a second.

`python3 crowd.py HOST PORT FILE FOLDER HEADER`: FILE is read, new files are sent to FOLDER, HEADER may be empty. Says `ready`
when all have begun, and how many the server has closed when SIGTERM ends it.
"""

import asyncio
import itertools
import signal
import socket
import ssl
import sys

IDLE, READING, SENDING = 1000, 500, 500
AT_ONCE = 50  # handshakes
BUFFER = 4096  # of the kernel, so that slowness reaches the server


def context():
    found = ssl.create_default_context()
    found.check_hostname, found.verify_mode = False, ssl.CERT_NONE
    return found


def head(verb, path, host, header, length=None):
    lines = [f"{verb} {path} HTTP/1.1", f"Host: {host}"]
    lines += [header] if header else []
    lines += [f"Content-Length: {length}"] if length else []
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def connect(tls, host, port):
    """A connection with small buffers."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, port))
    return await asyncio.open_connection(sock=sock, ssl=tls, server_hostname=host, limit=BUFFER)


class Crowd:
    def __init__(self, host, port, file, folder, header):
        self.at, self.file, self.folder, self.header = (host, int(port)), file, folder, header
        self.begun, self.closed, self.numbers = 0, 0, itertools.count()
        self.gate = asyncio.Semaphore(AT_ONCE)

    async def client(self, kind):
        async with self.gate:
            reader, writer = await connect(context_of_all, *self.at)
            writer.write(self.request(kind))
            if kind == "idle":
                await reader.readuntil(b"\r\n\r\n")
            self.begun += 1
        try:
            await self.hold(kind, reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        self.closed += 1

    def request(self, kind):
        host = self.at[0]
        if kind == "sending":
            return head("PUT", f"{self.folder}/slow-{next(self.numbers)}", host, self.header, 10**6)
        return head("GET" if kind == "reading" else "HEAD", self.file, host, self.header)

    async def hold(self, kind, reader, writer):
        """Until the server closes the connection."""
        while True:
            if kind == "idle":
                if not await reader.read(1):
                    return
            elif kind == "reading":
                if not await reader.read(1024):
                    return
                await asyncio.sleep(1)
            else:
                writer.write(b"x" * 1024)
                await writer.drain()
                await asyncio.sleep(1)

    async def run(self):
        kinds = ["idle"] * IDLE + ["reading"] * READING + ["sending"] * SENDING
        clients = [asyncio.create_task(self.client(kind)) for kind in kinds]
        while self.begun < len(kinds):
            for one in clients:
                if one.done() and one.exception():
                    raise one.exception()
            await asyncio.sleep(0.1)
        print("ready", flush=True)
        over = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
        await over.wait()
        print(f"closed {self.closed}", flush=True)


context_of_all = context()

if __name__ == "__main__":
    asyncio.run(Crowd(*sys.argv[1:]).run())

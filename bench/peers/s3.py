"""Objects over S3: renkei, MinIO, versitygw and rclone, each with TLS and asked by the same client (bench/s3_client.py).

renkei answers a PUT when content, attributes and name are on stable storage. MinIO syncs the content of an object with
its description, and no names. versitygw and rclone sync nothing.
"""

import os

from bench.measure import Fail, first_line, kill
from bench.peers.base import Peer, find
from bench.peers.http import make_certificate
from bench.peers.renkei import Pop

PORT = 18750  # and the ports after it
BUCKET = "data"
ACCESS, SECRET = "renkeibenchkey", "renkei-bench-secret"


class Objects(Peer):
    """A server of one bucket; the client is at the source."""

    encrypted = True
    program = ""

    @property
    def programs(self):
        return (self.program,)

    def version(self):
        return first_line(find(self.program), "--version")

    def serve(self, stage):
        """Serves the folder of its objects."""
        self.stage, self.keys = stage, (ACCESS, SECRET)
        self.root = os.path.join(stage.target, self.name)
        os.makedirs(os.path.join(self.root, *self.below), exist_ok=True)
        os.chmod(self.root, 0o777)
        self.home = stage.folder(self.name)
        self.begin(stage)

    below = (BUCKET,)

    def begin(self, stage):
        raise NotImplementedError

    def address(self):
        return f"{self.stage.network.address(self.stage.dst)}:{self.port}"

    def bucket(self):
        """The folder with the plain files of the bucket."""
        return os.path.join(self.root, *self.below)

    def processes(self):
        """Those of the server."""
        found, group = [], self.stage.groups[1]
        for process in group.processes():
            try:
                with open(f"/proc/{process}/cmdline", "rb") as line:
                    words = line.read().split(b"\0")
            except OSError:
                continue
            if any(self.root.encode() in word for word in words):
                found.append(process)
        return found

    def stop(self):
        kill(self.processes(), 15)

    def shown(self, stage, item, target):
        return f"s3_client.py {item} https://dst:{self.port}"


class RenkeiObjects(Objects):
    """renkei's own S3 door over a storage; objects are plain files."""

    name = "renkei-s3"
    program = "renkei"
    port = PORT
    checks = "MD5, AEAD"
    durable = "always"
    programs = ()
    below = ()

    def version(self):
        return first_line(self.stage.renkei, "--version")

    def begin(self, stage):
        self.pop = Pop(stage, stage.dst, "objects", self.port, self.root)
        self.pop.serve()
        told = self.pop.run("s3", "key", "create")
        rows = dict(line.split(": ", 1) for line in told.splitlines() if ": " in line)
        if "access key" not in rows or "secret key" not in rows:
            raise Fail(f"s3 key create: {told}")
        self.keys = (rows["access key"].strip(), rows["secret key"].strip())

    def processes(self):
        return self.pop.processes()


class Minio(Objects):
    """MinIO with one drive; small objects lie in its own format beside their description."""

    name = "minio"
    program = "minio"
    port = PORT + 1
    durable = "content only"

    def begin(self, stage):
        make_certificate(self.home)
        os.rename(f"{self.home}/cert.pem", f"{self.home}/public.crt")
        os.rename(f"{self.home}/key.pem", f"{self.home}/private.key")
        os.rmdir(self.bucket())
        words = ["env", f"MINIO_ROOT_USER={ACCESS}", f"MINIO_ROOT_PASSWORD={SECRET}", "MINIO_BROWSER=off", "MINIO_UPDATE=off",
                 find("minio"), "server", "--quiet", "--address", self.address(), "--certs-dir", self.home, self.root]
        stage.spawn(stage.dst, words, self.port, self.name, 60)


class Versitygw(Objects):
    """versitygw over a folder; objects are plain files."""

    name = "versitygw"
    program = "versitygw"
    port = PORT + 2

    def begin(self, stage):
        make_certificate(self.home)
        words = [find("versitygw"), "--access", ACCESS, "--secret", SECRET, "--port", self.address(), "--cert",
                 f"{self.home}/cert.pem", "--key", f"{self.home}/key.pem", "--quiet", "posix", self.root]
        stage.spawn(stage.dst, words, self.port, self.name)


class RcloneObjects(Objects):
    """rclone serve s3 over a folder; objects are plain files."""

    name = "rclone-s3"
    program = "rclone"
    port = PORT + 3

    def version(self):
        return first_line(find("rclone"), "version")

    def begin(self, stage):
        make_certificate(self.home)
        words = [find("rclone"), "serve", "s3", self.root, "--addr", self.address(), "--config", "/dev/null", "--cert",
                 f"{self.home}/cert.pem", "--key", f"{self.home}/key.pem", "--auth-key", f"{ACCESS},{SECRET}"]
        stage.spawn(stage.dst, words, self.port, self.name)


PEERS = [RenkeiObjects, Minio, Versitygw, RcloneObjects]

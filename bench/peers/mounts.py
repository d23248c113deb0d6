"""File systems over the network: a file or a tree is read from a mount at the destination, or written into one at the source.

Each copy has a mount of its own, made before it, so that no cache has what earlier ones read. A reader writes what it reads
to the destination's disk, without waiting for that; a writer reads from the source's and calls fsync. Trees go by `cp -r`.
"""

import getpass
import os
import shutil
import signal
import subprocess
import time

from bench import arrive
from bench.measure import Fail, first_line
from bench.peers.base import Peer, find, tree
from bench.peers.followed import Followed
from bench.peers.gfarm import Gfarm
from bench.peers.renkei import Pop
from bench.peers.ssh import Ssh

WITHIN = 20  # seconds for a mount to be there


class Mount(Peer):
    """`mounts` gives the command that serves a mount in the foreground, for a folder at the other site."""

    encrypted = True
    programs = ("nsenter", "findmnt")
    reads = True

    @property
    def direction(self):
        return "pull" if self.reads else "push"

    def here(self, stage):
        """The site that mounts, and the folder at the other one that is mounted."""
        return (stage.dst, stage.source) if self.reads else (stage.src, stage.target)

    def mounts(self, stage, folder, point):
        raise NotImplementedError

    def point(self, stage):
        return os.path.join(stage.folder(self.name), "mnt")

    def pid_file(self, stage):
        return os.path.join(stage.folder(self.name), "pid")

    def renew(self, stage):
        self.unmount(stage)
        site, folder = self.here(stage)
        point, pid_file = self.point(stage), self.pid_file(stage)
        os.makedirs(point, exist_ok=True)
        # A command at a site has mounts of its own; others come to them by the number of its process.
        line = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', pid_file, *self.mounts(stage, folder, point)]
        log = os.path.join(stage.folder(self.name), "log")
        with open(log, "ab") as out:
            self.process = subprocess.Popen(stage.argv(site, line), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                            process_group=0)
        end = time.monotonic() + WITHIN
        while not self.is_there(stage):
            if self.process.poll() is not None or time.monotonic() > end:
                with open(log, errors="replace") as text:
                    raise Fail(f"{self.name}: no mount: {text.read()[-500:].strip()}")
            time.sleep(0.05)

    def is_there(self, stage):
        try:
            with open(self.pid_file(stage)) as file, open(f"/proc/{int(file.read())}/mounts") as mounts:
                return any(line.split()[1] == self.point(stage) for line in mounts)
        except (OSError, ValueError):
            return False

    def end(self, stage):
        self.unmount(stage)

    def unmount(self, stage):
        process = getattr(self, "process", None)
        if process is None or process.poll() is not None:
            return
        with open(self.pid_file(stage)) as file:
            os.kill(int(file.read()), signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def serves(self, stage):
        return True

    def inside(self, stage, command):
        """The argv that runs a command where the mount is seen."""
        with open(self.pid_file(stage)) as file:
            return ["nsenter", f"--mount=/proc/{file.read().strip()}/ns/mnt", *command]

    def ends(self, stage, item, target):
        """What a copy reads, and the folder it writes to."""
        inside = os.path.join(self.point(stage), item if self.reads else os.path.basename(target))
        return (inside, target) if self.reads else (os.path.join(stage.source, item), inside)

    def copy(self, stage, item, target):
        if not tree(stage, item):
            return self.inside(stage, self.pieces(stage, item, target, 1 << 20))
        source, folder = self.ends(stage, item, target)
        return self.inside(stage, ["cp", "-r", source, f"{folder}/"])

    def pieces(self, stage, item, target, length):
        """The command inside that reads or writes a file in pieces of a length."""
        source, folder = self.ends(stage, item, target)
        durable = [] if self.reads else ["conv=fsync"]
        return ["dd", f"if={source}", f"of={folder}/{item}", f"bs={length}", *durable, "status=none"]


class Renkei(Mount):
    """A PoP at the other site with a volume in place of the folder, `renkei mount` without flags."""

    name = "renkei-mount-read"
    port = 17540
    checks = "AEAD"
    volume, grants = "read", "read"

    def missing(self):
        return None

    def version(self):
        return first_line(self.pop.stage.renkei, "--version")

    def serve(self, stage):
        self.begin(stage, *((stage.src, stage.source) if self.reads else (stage.dst, stage.target)))
        # A directory of the client's own: from that of the PoP the mount would find the PoP's socket, which namespaces of
        # networks do not hide, and read the plain files.
        self.client_dir = os.path.join(stage.folder(self.name), "client")
        shutil.rmtree(self.client_dir, ignore_errors=True)
        shutil.copytree(self.pop.folder, self.client_dir, ignore=shutil.ignore_patterns("run"))

    # The PoPs by run, site and folder: a folder belongs to one volume, which several programs may mount.
    pops = {}

    def begin(self, stage, site, folder):
        key = (stage.work, site, folder)
        if key in self.pops:
            self.pop = self.pops[key]
            return
        storage, name = os.path.split(folder)
        self.pop = self.pops[key] = Pop(stage, site, f"mounted-{self.port}", self.port, storage)
        self.pop.serve()
        self.pop.run("volume", "create", self.volume, "--storage", "data", "--in-place", name, "--account",
                     getpass.getuser())
        self.pop.run("volume", "grant", self.volume, f"*@{self.pop.name}", self.grants)

    def mounted(self):
        return f"/{self.volume}"

    def command(self, *flags):
        return [self.pop.stage.renkei, "--dir", self.client_dir, "mount", "--foreground", *flags, self.mounted()]

    def mounts(self, stage, folder, point):
        return [*self.command(), point]


class RenkeiWrite(Renkei):
    """The same, written into."""

    name = "renkei-mount-write"
    port = 17541
    reads = False
    durable = "always"
    volume, grants = "written", "write"


class Sshfs(Mount):
    """sshfs with several connections and the kernel's largest requests."""

    name = "sshfs-read"
    programs = ("sshfs", "sshd", "nsenter")
    checks = "MAC of the connection"

    def serve(self, stage):
        self.ssh = Ssh()
        # Its sshd is at the destination; for a reader that is the other side.
        self.other = stage if not self.reads else stage.turned()
        self.ssh.serve(self.other)

    def mounts(self, stage, folder, point):
        options = ["max_conns=8", "kernel_cache", "max_read=262144"]
        flags = [word for option in options for word in ("-o", option)]
        return [find("sshfs"), "-f", "-F", self.ssh.config(self.other), *flags, f"dst:{folder}", point]


class SshfsWrite(Sshfs):
    """The same, written into."""

    name = "sshfs-write"
    reads = False


class Rclone(Mount):
    """rclone's mount of its own WebDAV server, with the flags for large files."""

    name = "rclone-mount-read"
    port = 8781
    programs = ("rclone", "nsenter")
    encrypted = False
    checks = "no"

    def version(self):
        return first_line(find("rclone"), "version")

    def serve(self, stage):
        command = [find("rclone"), "serve", "webdav", stage.source, "--addr", f"{stage.src_address}:{self.port}",
                   "--read-only", "--config", "/dev/null"]
        stage.spawn(stage.src, command, self.port, self.name)

    def mounts(self, stage, folder, point):
        remote = f":webdav,vendor=rclone,url='http://{stage.src_address}:{self.port}':"
        cache = os.path.join(stage.folder(self.name), f"cache-{time.monotonic_ns()}")
        flags = ["--vfs-cache-mode", "full", "--vfs-read-ahead", "256M", "--buffer-size", "64M", "--vfs-read-chunk-streams",
                 "16", "--vfs-read-chunk-size", "4M", "--dir-cache-time", "72h"]
        return [find("rclone"), "mount", "--config", "/dev/null", "--cache-dir", cache, *flags, remote, point]


class RenkeiEarly(RenkeiWrite):
    """The same with `--close early`: programs do not wait for what they closed."""

    name = "renkei-mount-early"
    port = 17543
    durable = "no"

    def mounts(self, stage, folder, point):
        return [*self.command("--close", "early"), point]

    def found(self, stage, item, target):
        self.unmount(stage)
        return super().found(stage, item, target)


class RenkeiFollowed(RenkeiWrite):
    """A PoP at either site: that of the source follows a volume of the other one, and is mounted. A copy has ended when the
    destination has all of it."""

    name = "renkei-mount-followed"
    port = 17544
    volume = "followed"

    def serve(self, stage):
        storage = os.path.join(stage.folder(self.name), "storage")
        os.makedirs(storage, exist_ok=True)
        self.sites = Followed(stage, self.volume, self.port, stage.target, storage)
        self.sites.follow()
        self.sites.await_writing()
        self.pop = self.sites.far

    def mounts(self, stage, folder, point):
        return self.pop.command("mount", "--foreground", self.mounted(), point)

    def copy(self, stage, item, target):
        home, far, folder = self.sites.home.folder, self.sites.far.folder, self.ends(stage, item, target)[1]
        wait = ["python3", os.path.abspath(arrive.__file__), stage.renkei, home, far, self.volume, folder]
        command = super().copy(stage, item, target)
        return [*command[:2], *wait, *command[2:]]


class RenkeiLocal(Renkei):
    """A PoP on the machine of the mount, which is for reading alone."""

    name = "renkei-mount-local"
    port = 17542

    def here(self, stage):
        return stage.src, stage.source

    def mounts(self, stage, folder, point):
        return self.pop.command("mount", "--foreground", "--read-only", self.mounted(), point)


class GfarmWrite(Mount):
    """gfarm2fs of Debian, into a Gfarm file system whose servers are at the destination."""

    name = "gfarm2fs-write"
    programs = ("gfarm2fs", "gfmd", "gfsd", "gfkey", "gfhost", "nsenter")
    reads = False
    encrypted = False
    checks = "no"

    def version(self):
        return "gfarm2fs of Debian " + first_line("dpkg-query", "-W", "-f", "${Version}", "gfarm2fs")

    def serve(self, stage):
        self.gfarm = Gfarm()
        self.gfarm.serve(stage)

    def mounts(self, stage, folder, point):
        config = f"GFARM_CONFIG_FILE={stage.folder(self.gfarm.name)}/client.conf"
        return ["env", config, find("gfarm2fs"), "-f", point]

    def copy(self, stage, item, target):
        made = os.path.join(self.point(stage), os.path.basename(target))
        return self.inside(stage, ["sh", "-ec", 'mkdir -p "$0" && exec "$@"', made, *super().copy(stage, item, target)[2:]])

    def found(self, stage, item, target):
        return self.gfarm.found(stage, item, target)

    def clear(self, stage, target):
        self.gfarm.clear(stage, target)

    def end(self, stage):
        self.unmount(stage)
        self.gfarm.end(stage)


PEERS = [Renkei, RenkeiWrite, RenkeiEarly, RenkeiFollowed, RenkeiLocal, Sshfs, SshfsWrite, Rclone, GfarmWrite]

"""What runs over OpenSSH: scp, sftp, rsync and tar, through an sshd with keys and a port of its own."""

import os

from bench.measure import first_line, output
from bench.peers.base import Peer, find

PORT, CIPHER = 2222, "aes128-gcm@openssh.com"
SERVER = """Port {port}
ListenAddress {address}
HostKey {folder}/host
PidFile {folder}/pid
AuthorizedKeysFile {folder}/user.pub
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
Ciphers {cipher}
Subsystem sftp internal-sftp
MaxStartups 100
"""
CLIENT = """Host dst
HostName {address}
Port {port}
IdentityFile {folder}/user
IdentitiesOnly yes
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
GlobalKnownHostsFile /dev/null
LogLevel ERROR
BatchMode yes
Compression no
Ciphers {cipher}
"""


class Ssh(Peer):
    """One sshd at the destination serves all of them."""

    port = PORT
    encrypted = True
    checks = "MAC of the connection"

    def version(self):
        return first_line(find("ssh"), "-V")

    def serve(self, stage):
        folder = stage.folder("ssh")
        if stage.network.listens(stage.dst, PORT):
            return
        for name in ("host", "user"):
            if not os.path.exists(f"{folder}/{name}"):
                output("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{folder}/{name}")
        words = {"port": PORT, "address": stage.dst_address, "folder": folder, "cipher": CIPHER}
        stage.write(f"{folder}/config", CLIENT.format(**words))
        conf = stage.write(f"{folder}/sshd_config", SERVER.format(**words))
        os.makedirs("/run/sshd", exist_ok=True)
        stage.spawn(stage.dst, [find("sshd"), "-D", "-e", "-f", conf], PORT, "sshd")

    def config(self, stage):
        return os.path.join(stage.folder("ssh"), "config")


class Scp(Ssh):
    """scp, which speaks SFTP since OpenSSH 9."""

    name = "scp"
    programs = ("scp", "sshd")

    def copy(self, stage, item, target):
        return ["scp", "-F", self.config(stage), "-q", "-r", os.path.join(stage.source, item), f"dst:{target}/"]


class Sftp(Ssh):
    """sftp with larger requests, more of them in flight."""

    name = "sftp"
    programs = ("sftp", "sshd")

    def copy(self, stage, item, target):
        batch = os.path.join(stage.folder("ssh"), f"batch-{os.path.basename(target)}")
        stage.write(batch, f"put -r {os.path.join(stage.source, item)} {target}/\n")
        return ["sftp", "-F", self.config(stage), "-q", "-B", "261120", "-R", "256", "-b", batch, "dst"]


class RsyncSsh(Ssh):
    """rsync over ssh, whole files in place."""

    name = "rsync-ssh"
    programs = ("rsync", "ssh", "sshd")
    checks = "MD5 or xxh of each file, MAC"

    def version(self):
        return first_line(find("rsync"), "--version")

    def copy(self, stage, item, target):
        return ["rsync", "-a", "--whole-file", "--inplace", "-e", f"ssh -F {self.config(stage)}",
                os.path.join(stage.source, item), f"dst:{target}/"]


class TarSsh(Ssh):
    """tar to tar through ssh, then one sync of the file system."""

    name = "tar-ssh"
    programs = ("tar", "ssh", "sshd")
    durable = "sync -f"

    def version(self):
        return first_line(find("tar"), "--version")

    def copy(self, stage, item, target):
        line = (f"tar -C {stage.source} -c -b 2048 {item} | ssh -F {self.config(stage)} dst "
                f"'tar -C {target} -x -b 2048 && sync -f {target}'")
        return ["bash", "-euo", "pipefail", "-c", line]


PEERS = [RsyncSsh, Scp, Sftp, TarSsh]

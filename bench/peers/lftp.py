"""lftp, which loads one file in parallel pieces, from vsftpd at the source."""

import os

from bench.measure import first_line
from bench.peers.base import Peer, find, tree

PORT = 2121
CONF = """listen=YES
listen_address={address}
listen_port={port}
background=NO
anonymous_enable=YES
local_enable=NO
write_enable=NO
no_anon_password=YES
anon_root={source}
anon_world_readable_only=NO
ftp_username=root
run_as_launching_user=YES
secure_chroot_dir={folder}/empty
seccomp_sandbox=NO
use_sendfile=YES
max_clients=200
max_per_ip=200
xferlog_enable=NO
"""


class Lftp(Peer):
    """pget with 8 pieces; mirror with 16 files at a time."""

    name = "lftp"
    port = PORT
    programs = ("lftp", "vsftpd")
    direction = "pull"

    def version(self):
        return first_line(find("lftp"), "--version")

    def serve(self, stage):
        folder = stage.folder(self.name)
        os.makedirs(f"{folder}/empty", exist_ok=True)
        words = {"address": stage.src_address, "port": PORT, "source": stage.source, "folder": folder}
        conf = stage.write(f"{folder}/vsftpd.conf", CONF.format(**words))
        stage.spawn(stage.src, [find("vsftpd"), conf], PORT, self.name)

    def copy(self, stage, item, target):
        if tree(stage, item):
            get = f"mirror --parallel=16 --use-pget-n=8 {item} {target}/{item}"
        else:
            get = f"pget -n 8 {item} -o {target}/{item}"
        buffers = "" if stage.kernel == "stock" else "set net:socket-buffer 67108864; "
        script = (f"set cmd:fail-exit yes; {buffers}set ftp:sync-mode no; set ftp:use-mdtm no; "
                  "set net:max-retries 2; set xfer:log no; set xfer:use-temp-file no; "
                  f"open ftp://{stage.src_address}:{PORT}/; {get}")
        return ["env", f"LFTP_HOME={stage.folder(self.name)}", "lftp", "--norc", "-c", script]


PEERS = [Lftp]

"""NFS version 4 without the kernel: nfs-ganesha at the source, `nfs-cp` of libnfs at the destination."""

import os

from bench.measure import first_line
from bench.peers.base import Peer, find

PORT = 20490
CONFIG = """NFS_CORE_PARAM {{ NFS_Port = {port}; Protocols = 4; Enable_NLM = false; Enable_RQUOTA = false; }}
NFSV4 {{ Graceless = true; RecoveryRoot = {folder}/recovery; }}
EXPORT {{ Export_Id = 1; Path = {source}; Pseudo = /src; Access_Type = RO; Squash = No_root_squash; SecType = sys;
  Protocols = 4; Transports = TCP; FSAL {{ Name = VFS; }} }}
"""


class Nfs(Peer):
    """One file at a time, in the order of its bytes."""

    name = "nfs-ganesha"
    port = PORT
    direction = "pull"
    programs = ("ganesha.nfsd", "nfs-cp")

    def version(self):
        return "nfs-ganesha of Debian " + first_line("dpkg-query", "-W", "-f", "${Version}", "nfs-ganesha")

    def serve(self, stage):
        folder = stage.folder(self.name)
        for needed in (f"{folder}/recovery", "/var/run/ganesha"):
            os.makedirs(needed, exist_ok=True)
        config = stage.write(f"{folder}/conf", CONFIG.format(port=PORT, folder=folder, source=stage.source))
        command = [find("ganesha.nfsd"), "-F", "-f", config, "-L", f"{folder}/log", "-p", f"{folder}/pid", "-N", "CRIT"]
        stage.spawn(stage.src, command, PORT, self.name)

    def copy(self, stage, item, target):
        source = f"nfs://{stage.src_address}/src/{item}?version=4&nfsport={PORT}"
        return [find("nfs-cp"), source, os.path.join(target, item)]


PEERS = [Nfs]

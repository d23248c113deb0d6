"""gfpcopy into a Gfarm file system whose metadata server and only spool are at the destination.

The metadata server keeps its database in memory here, which is faster than the PostgreSQL of a real one. Gfarm finds
its keys in the homes of the users root and _gfarmfs; those it makes for itself are removed at the end.
"""

import os
import pwd
import time

from bench.data import digests
from bench.measure import Fail, first_line, output
from bench.peers.base import Peer, find

META, DATA = 10601, 10600
COMMON = "metadb_server_host {host}\nmetadb_server_port {meta}\nauth enable sharedsecret *\nlog_level warning\n"
KEY = ".gfarm_shared_key"


class Gfarm(Peer):
    """Eight files at a time; load and free space of the spool are not asked for."""

    name = "gfarm"
    port = DATA
    programs = ("gfpcopy", "gfmd", "gfsd", "gfkey", "gfhost", "gfrm")
    checks = "sizes"
    keys = ()

    def version(self):
        return "gfpcopy of Debian's gfarm-client " + first_line("dpkg-query", "-W", "-f", "${Version}", "gfarm-client")

    def serve(self, stage):
        folder = stage.folder(self.name)
        spool = os.path.join(stage.target, "gfarm-spool")
        os.makedirs(os.path.join(spool, "data"), exist_ok=True)
        owner = pwd.getpwnam("_gfarmfs")
        for path in (spool, os.path.join(spool, "data")):
            os.chown(path, owner.pw_uid, owner.pw_gid)
        self.keys = [os.path.join(home, KEY) for home in (pwd.getpwuid(0).pw_dir, owner.pw_dir)]
        self.keys = [key for key in self.keys if not os.path.exists(key)]
        common = COMMON.format(host=stage.dst, meta=META)
        stage.write(f"{folder}/client.conf", common)
        meta = stage.write(f"{folder}/gfmd.conf", common + "admin_user root\n")
        data = stage.write(f"{folder}/gfsd.conf", common + f"spool {spool}\n")
        output(*self.tool(stage, stage.dst, "gfkey", "-f", "-p", "31536000"))
        stage.spawn(stage.dst, [find("gfmd"), "-d", "-L", "warning", "-f", meta, "-P", f"{folder}/gfmd.pid"], META, "gfmd")
        output(*self.tool(stage, stage.dst, "gfhost", "-c", "-a", "linux", "-p", str(DATA), "-n", "2", stage.dst))
        stage.spawn(stage.dst, [find("gfsd"), "-d", "-L", "warning", "-f", data, "-r", spool, "-h", stage.dst], DATA, "gfsd")
        self.wait_for_spool(stage)

    def wait_for_spool(self, stage):
        """The spool takes files a moment after it listens."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if stage.dst in output(*self.tool(stage, stage.dst, "gfdf")):
                return
            time.sleep(0.2)
        raise Fail("gfsd did not join gfmd")

    def tool(self, stage, site, *command):
        config = f"GFARM_CONFIG_FILE={stage.folder(self.name)}/client.conf"
        return stage.argv(site, ["env", config, *command])

    def copy(self, stage, item, target):
        config = f"GFARM_CONFIG_FILE={stage.folder(self.name)}/client.conf"
        to, source = f"gfarm:/{os.path.basename(target)}", os.path.join(stage.source, item)
        return ["env", config, "sh", "-ec", f"gfmkdir -p {to} && exec gfpcopy -q -B -U -f -j 8 file://{source} {to}"]

    def found(self, stage, item, target):
        """The spool names files by inode number, so what is in them is all there is to compare."""
        return digests(os.path.join(stage.target, "gfarm-spool", "data"))

    def clear(self, stage, target):
        """The spool empties a moment after the names have gone."""
        output(*self.tool(stage, stage.dst, "gfrm", "-rf", f"gfarm:/{os.path.basename(target)}"))
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if not any(names for _, _, names in os.walk(os.path.join(stage.target, "gfarm-spool", "data"))):
                return
            time.sleep(0.1)

    def end(self, stage):
        for key in self.keys:
            if os.path.exists(key):
                os.remove(key)


PEERS = [Gfarm]

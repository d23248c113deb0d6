"""Third-party copies (HTTP-TPC): a client at the destination has its server fetch files from the server at the source."""

import json
import os

from bench.measure import first_line, output
from bench.peers.base import Peer, find
from bench.peers.renkei import Pop

PORT = 18800  # and the ports after it
CLIENT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tpc_client.py")
COPIES = 16   # at a time, as many as a PoP runs for one user

XROOTD = """xrd.port {port}
xrd.protocol http:{http} libXrdHttp.so
xrd.tls {folder}/cert.pem {folder}/key.pem
xrd.tlsca certfile {folder}/cert.pem
http.desthttps yes
http.exthandler xrdtpc libXrdHttpTPC.so
all.export {root}
all.adminpath {folder}
all.pidpath {folder}
xrd.allow host *
"""


class Tpc(Peer):
    """COPY at the destination, 16 files at a time."""

    direction = "pull"
    encrypted = True

    def plan(self, stage, words):
        folder = stage.folder(f"plan-{self.name}")
        words |= {"folder": stage.source, "copies": COPIES}
        self.plan_file = stage.write(f"{folder}/plan.json", json.dumps(words), 0o600)

    def copy(self, stage, item, target):
        return ["python3", CLIENT, self.plan_file, item, target]

    def shown(self, stage, item, target):
        return super().shown(stage, item, target).replace(CLIENT, "bench/tpc_client.py")


class RenkeiTpc(Tpc):
    """Between two PoPs that trust each other, started anew before each copy: the bytes go by renkei/1."""

    name = "renkei-tpc"
    port = PORT
    checks = "adler32, AEAD"
    durable = "always"
    limits = ()   # settings of the PoP at the source

    def version(self):
        return first_line(self.near.stage.renkei, "--version")

    def serve(self, stage):
        number = self.port - PORT
        self.near = Pop(stage, stage.src, f"tpcnear{number}", self.port, stage.source, self.limits)
        self.far = Pop(stage, stage.dst, f"tpcfar{number}", self.port, stage.target)
        self.near.trust(self.far)
        self.far.trust(self.near)
        for pop in (self.near, self.far):
            pop.serve()
        self.plan(stage, {"source": self.url(stage, stage.src), "target": self.url(stage, stage.dst),
                          "source_token": self.token(self.near, "read,list"),
                          "target_token": self.token(self.far, "read,list,create,modify,delete")})

    def url(self, stage, site):
        return f"https://{stage.network.address(site)}:{self.port}/data"

    def token(self, pop, may):
        return pop.run("token", f"{pop.name}:/data", "--may", may, "--for", "12h").split()[-1]

    def renew(self, stage):
        self.near.restart()
        self.far.restart()


class RenkeiTpcHttp(RenkeiTpc):
    """The same where the source gives no certificates (`borrowed_hours = 0`): the bytes go by HTTP."""

    name = "renkei-tpc-http"
    port = PORT + 1
    limits = ("RENKEI_BORROWED_HOURS=0",)


class XrootdTpc(Tpc):
    """XRootD's own, without authentication. It does not run as root."""

    name = "xrootd-tpc"
    port = PORT + 2
    programs = ("xrootd",)

    def version(self):
        return first_line(find("xrootd"), "version")

    def serve(self, stage):
        folder = stage.folder(self.name)
        addresses = [stage.network.address(site) for site in (stage.src, stage.dst)]
        names = ",".join(f"IP:{address}" for address in addresses)
        output("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
               "-subj", "/CN=bench", "-addext", f"subjectAltName={names}", "-keyout", f"{folder}/key.pem",
               "-out", f"{folder}/cert.pem")
        urls = []
        for number, (site, root) in enumerate([(stage.src, stage.source), (stage.dst, stage.target)]):
            at = stage.folder(os.path.join(self.name, str(number)))
            for name in ("key.pem", "cert.pem"):
                output("cp", f"{folder}/{name}", at)
            # The two may be on one address.
            http, port = self.port + number, self.port + 2 + number
            conf = stage.write(f"{at}/xrootd.cfg", XROOTD.format(folder=at, root=root, http=http, port=port))
            output("chown", "-R", "nobody", at)
            command = [find("xrootd"), "-R", "nobody", "-n", f"tpc{number}", "-c", conf, "-l", f"{at}/log"]
            stage.spawn(site, command, http, f"{self.name}-{number}")
            urls.append(f"https://{stage.network.address(site)}:{http}/{root}")
        self.plan(stage, dict(zip(("source", "target"), urls)))


PEERS = [RenkeiTpc, RenkeiTpcHttp, XrootdTpc]

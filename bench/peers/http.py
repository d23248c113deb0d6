"""Files over HTTPS: curl and davix, from and to renkei, nginx with its DAV module, XRootD and rclone.

The same clients ask each server for one file. A server that is read stands at the source; one that is written, at the
destination. Only renkei says 201 after the file is on stable storage; the report has the time that the others' bytes
still need.
"""

import os
import shutil
import subprocess

from bench.measure import Fail, first_line, output
from bench.peers.base import Peer, find
from bench.peers.renkei import Pop

PORT = 18700  # and the ports after it
HERE = os.path.dirname(os.path.abspath(__file__))

NGINX = """load_module modules/ngx_http_dav_ext_module.so;
worker_processes auto;
user root;
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  sendfile on;
  client_max_body_size 0;
  client_body_temp_path {root}/.body;
  {temporary}
  server {{
    listen {address}:{port} ssl;
    ssl_certificate {folder}/cert.pem;
    ssl_certificate_key {folder}/key.pem;
    ssl_protocols TLSv1.2 TLSv1.3;
    location / {{ root {root}; dav_methods PUT DELETE MKCOL COPY MOVE; create_full_put_path on; }}
  }}
}}
"""
# Temporary files of what is only read.
TEMPORARY = "".join(f"{kind}_temp_path {{folder}}/{kind}; " for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))

XROOTD = """xrd.port {port}
xrd.protocol http:{port} libXrdHttp.so
http.cert {folder}/cert.pem
http.key {folder}/key.pem
xrd.tls {folder}/cert.pem {folder}/key.pem
all.export {root}
all.adminpath {folder}
all.pidpath {folder}
xrd.allow host *
xrd.tlsca noverify
"""


def make_certificate(folder, owner=None):
    """A self-signed certificate for a server that is not renkei."""
    key, cert = f"{folder}/key.pem", f"{folder}/cert.pem"
    output("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
           "-subj", "/CN=bench", "-keyout", key, "-out", cert)
    for path in (key, cert):
        if owner:
            output("chown", owner, path)


class Server:
    """One HTTPS server; `begin` starts it at a site with a folder to serve, `url` is that of a path below it."""

    scheme = "https"
    credential = ()          # flags of curl
    davix = ("-k",)

    def begin(self, stage, site, root, port, name):
        raise NotImplementedError

    def path(self, path):
        return path

    def url(self, path):
        return f"{self.scheme}://{self.address}:{self.port}{self.path(path)}"


class RenkeiServer(Server):
    program = "renkei"

    def begin(self, stage, site, root, port, name):
        self.address, self.port = stage.network.address(site), port
        self.pop = Pop(stage, site, name.replace("-", ""), port, root)
        self.pop.serve()
        token = self.pop.run("token", f"{self.pop.name}:/data", "--may", "read,list,create,modify,delete", "--for", "12h")
        header = f"Authorization: Bearer {token.split()[-1]}"
        self.credential, self.davix = ("-H", header), ("-k", "-H", header)

    def path(self, path):
        return f"/data{path}"


class NginxServer(Server):
    program = "nginx"

    def begin(self, stage, site, root, port, name):
        self.address, self.port, folder = stage.network.address(site), port, stage.folder(name)
        make_certificate(folder)
        words = {"folder": folder, "root": root, "address": self.address, "port": port}
        conf = stage.write(f"{folder}/nginx.conf", NGINX.format(temporary=TEMPORARY.format(folder=folder), **words))
        stage.spawn(site, [find("nginx"), "-c", conf], port, name)


class XrootdServer(Server):
    """Does not run as root."""

    program = "xrootd"

    def begin(self, stage, site, root, port, name):
        self.address, self.port, self.root, folder = stage.network.address(site), port, root, stage.folder(name)
        os.chmod(folder, 0o777)
        make_certificate(folder, "nobody")
        conf = stage.write(f"{folder}/xrootd.cfg", XROOTD.format(folder=folder, root=root, port=port))
        stage.spawn(site, [find("xrootd"), "-R", "nobody", "-n", name, "-c", conf, "-l", f"{folder}/log"], port, name)

    def path(self, path):
        return f"/{self.root}{path}"


class RcloneServer(Server):
    program = "rclone"

    def begin(self, stage, site, root, port, name):
        self.address, self.port, folder = stage.network.address(site), port, stage.folder(name)
        make_certificate(folder)
        command = [find("rclone"), "serve", "webdav", root, "--addr", f"{self.address}:{port}", "--config", "/dev/null",
                   "--cert", f"{folder}/cert.pem", "--key", f"{folder}/key.pem"]
        stage.spawn(site, command, port, name)


class Http(Peer):
    """One file by one client and one connection."""

    server = Server
    encrypted = True
    client_program = "curl"

    @property
    def programs(self):
        return tuple(name for name in (self.client_program, self.server.program) if name != "renkei")

    def version(self):
        if self.server is RenkeiServer:
            return first_line(self.at.pop.stage.renkei, "--version")
        return first_line(find(self.server.program), {"nginx": "-v", "xrootd": "-v"}.get(self.server.program, "version"))

    def serve(self, stage):
        self.at = self.server()
        root, site = (stage.target, stage.dst) if self.direction == "push" else (stage.source, stage.src)
        self.at.begin(stage, site, root, self.port, self.name)

    def copy(self, stage, item, target):
        if self.direction == "push":
            return self.put(os.path.join(stage.source, item), self.at.url(f"/{os.path.basename(target)}/{item}"))
        return self.get(self.at.url(f"/{item}"), os.path.join(target, item))

    def shown(self, stage, item, target):
        """The token is left out."""
        text = super().shown(stage, item, target)
        secret = self.at.credential[1].split()[-1] if self.at.credential else None
        return text.replace(secret, "TOKEN") if secret else text

    def get(self, url, path):
        if self.client_program == "curl":
            return ["curl", "--http1.1", "-sSfk", *self.at.credential, "-o", path, url]
        return ["davix-get", *self.at.davix, url, path]

    def put(self, path, url):
        if self.client_program == "curl":
            return ["curl", "--http1.1", "-sSfk", *self.at.credential, "-o", "/dev/null", "-T", path, url]
        return ["davix-put", *self.at.davix, path, url]


class Crowded(Http):
    """One file by curl beside 1,000 idle clients and 1,000 that move a kilobyte a second."""

    crowd = None

    def renew(self, stage):
        header = self.at.credential[1] if self.at.credential else ""
        folder = os.path.join(stage.source if self.direction == "pull" else stage.target, "slow")
        os.makedirs(folder, exist_ok=True)
        os.chmod(folder, 0o777)
        item = "large.dat"
        command = ["python3", os.path.join(HERE, "..", "crowd.py"), self.at.address, str(self.at.port), self.at.path(f"/{item}"),
                   self.at.path("/slow"), header]
        self.crowd = subprocess.Popen(stage.network.argv(stage.dst, command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      text=True)
        if self.crowd.stdout.readline() != "ready\n":
            raise Fail(f"{self.name}: not all clients could connect")

    def clear(self, stage, target):
        """Ends the crowd; a server that closed some of it is not beside it."""
        self.crowd.terminate()
        closed = self.crowd.communicate(timeout=30)[0].split()[-1]
        shutil.rmtree(os.path.join(stage.source, "slow"), ignore_errors=True)
        if closed != "0":
            raise Fail(f"{closed} of the clients were closed")


def peer(server, client, direction, number):
    """The class of one server, client and direction: `renkei-curl-get` ..."""
    verb = "put" if direction == "push" else "get"
    words = {"name": f"{server.program}-{client.removesuffix('-get')}-{verb}", "server": server, "direction": direction,
             "client_program": client, "port": PORT + number, "__doc__": f"{server.program}, {verb} by {client}."}
    if server is RenkeiServer:
        words |= {"checks": "AEAD", "durable": "always"}
    return type(words["name"], (Http,), words)


SERVERS = (RenkeiServer, NginxServer, XrootdServer, RcloneServer)
KINDS = [(server, client, direction) for direction in ("pull", "push") for server in SERVERS
         for client in ("curl", "davix-get")]
PEERS = [peer(*kind, number) for number, kind in enumerate(KINDS)]


def crowded(server, number):
    """The class of one server beside a crowd: `renkei-curl-crowd` ..."""
    words = {"name": f"{server.program}-curl-crowd", "server": server, "direction": "pull", "port": PORT + number,
             "__doc__": f"{server.program}, get by curl, beside 1,000 idle and 1,000 slow clients."}
    return type(words["name"], (Crowded,), words)


PEERS += [crowded(server, len(KINDS) + number) for number, server in enumerate((RenkeiServer, NginxServer))]

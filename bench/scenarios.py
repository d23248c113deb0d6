"""What is measured: paths, data and who takes part. Sizes are those of `--scale 1`."""

import os
import re

from bench import data
from bench.machine import REPOSITORY
from bench.measure import Fail

M, G = 10**6, 10**9
MOVERS = ["renkei", "renkei-pops", "gridftp", "rclone", "xrdcp", "lftp", "rsync", "rsync-ssh", "tar-ssh", "scp",
          "sftp", "gfarm"]
FILE, TREE = [*MOVERS, "RAW"], [*MOVERS, "RAW", "LOCAL", "LOCAL-unsynced"]
SWEEP = ["renkei", "gridftp", "rclone", "rsync"]
RAMP = ["renkei", "renkei-pops", "renkei-pops-2nd", "gridftp", "rclone"]
# What a frame has besides TCP payload: headers of IP and TCP with timestamps, and of Ethernet.
HEADERS, ETHERNET = 52, 14


class Path:
    """Two sites with one link, or two sites of a file in lab/. `rate` is in bit/s of Ethernet frames, None if free.

    `queue` is as in a topology file, None for the lab's default; `mtu` is the largest IP packet.
    """

    def __init__(self, rate=None, rtt_ms=0.0, loss=0.0, file=None, src="one", dst="two", sites=("one", "two"), queue=None,
                 mtu=1500):
        self.rate, self.rtt_ms, self.loss, self.queue, self.mtu = rate, rtt_ms, loss, queue, mtu
        self.file, self.src, self.dst, self.sites = file, src, dst, sites

    @property
    def cable(self):
        return self.rate is None and self.file is None

    @property
    def network(self):
        """What makes two paths use the same lab."""
        return self.file or (self.rate, self.rtt_ms, self.loss, self.queue, self.mtu)

    @property
    def limit(self):
        """The most payload the path can carry, in bytes per second."""
        share = (self.mtu - HEADERS) / (self.mtu + ETHERNET)
        return self.rate / 8 * share * (1 - self.loss) if self.rate else None

    def topology(self):
        """The topology file of a path that is not in lab/."""
        if self.rate is None:
            return ""
        more = f'loss = "{self.loss * 100:g}%"\n' if self.loss else ""
        more += f'queue = "{self.queue}"\n' if self.queue else ""
        more += f"mtu = {self.mtu}\n" if self.mtu != 1500 else ""
        return (f'name = "bench"\n[[site]]\nname = "{self.src}"\n[[site]]\nname = "{self.dst}"\n[[link]]\n'
                f'between = ["{self.src}", "{self.dst}"]\nrate = "{self.rate // M}M"\nrtt = "{self.rtt_ms:g} ms"\n{more}')

    def shown(self):
        if self.cable:
            return "no delay, no rate limit"
        if self.file and not self.rate:
            return f"{len(self.sites)} sites of {self.file}"
        rate = f"{self.rate / G:g} Gbit/s" if self.rate else "no rate limit"
        loss = f", loss {self.loss:g}" if self.loss else ""
        loss += f", queue {self.queue}" if self.queue else ""
        loss += f", MTU {self.mtu}" if self.mtu != 1500 else ""
        where = f", {self.src} to {self.dst} of {self.file}" if self.file else ""
        return f"{rate}, RTT {self.rtt_ms:g} ms{loss}{where}" if self.rtt_ms else f"{rate}{where}"


class Data:
    """Something to move. `make(folder, scale)` creates it below the source folder and returns bytes and files.

    `size` is about what it takes at scale 1.
    """

    def __init__(self, item, title, make, size):
        self.item, self.title, self.make, self.size = item, title, make, size


def one_file(item, size, title):
    return Data(item, title, lambda folder, scale: data.make_file(os.path.join(folder, item), int(size * scale)), size)


def many(item, title, count, size, make):
    return Data(item, title,
                lambda folder, scale: make(os.path.join(folder, item), max(20, int(count * min(scale, 1)))), size)


def archive(folder, scale):
    montage = os.path.join(folder, "montage")
    if not os.path.isdir(montage):
        MONTAGE.make(folder, scale)
    return data.make_archive(os.path.join(folder, "montage.tar"), montage)


LARGE = one_file("large.dat", 4 * G, "one file")
EIGHT = one_file("eight.dat", 8 * G, "one file")
QUARTER = one_file("quarter.dat", 250 * M, "one file")
GIGA = one_file("giga.dat", G, "one file")
KEK = one_file("kek.dat", 907 * M, "one file")
HALF = one_file("half.dat", 500 * M, "one file")
MONTAGE = many("montage", "Montage's shape, one by one", 2000, 4 * G, data.make_montage)
ARCHIVE = Data("montage.tar", "Montage's shape, one archive", archive, 4 * G)
TINY = many("tiny", "files of 1 to 20 KB", 20000, 210 * M, data.make_tiny)


def equal(size, count):
    name = f"{size // 1000}k" if size < M else f"{size // M}m"
    return many(f"equal-{name}", f"files of {name.upper()}B", count, count * size,
                lambda folder, scaled: data.make_equal(folder, scaled, size))


class Scenario:
    """One table: `peers` move `data` over `path`, or another `kind` of measuring (bench/run has them all).

    `trace` samples each run; `drawn` makes a plot of it, `plot` names the plot this scenario is a point of. `eight` also
    asks iperf3 with eight streams, `floor` what encryption and digest cost alone. `cap` is the limit in bit/s.
    """

    def __init__(self, name, title, path, what, peers=None, kernel="tuned", paper=(), trace=False, drawn=False, plot=None,
                 kind="copies", eight=False, floor=False, cap=None):
        self.id, self.title, self.path, self.data, self.kind = name, title, path, what, kind
        self.peers = peers or (FILE if what and what.item.endswith((".dat", ".tar")) else TREE)
        self.kernel, self.paper, self.plot = kernel, list(paper), plot
        self.trace, self.drawn, self.eight, self.floor, self.cap = trace or drawn, drawn, eight, floor, cap


# RTT in ms between the sender and titech: the mean of the paper's two figures, as in lab/seven-sites.toml.
SENDERS = {"titech2": 0.2, "tkb": 5.71, "kek": 5.85, "osaka": 9.71}
SEVEN = ("titech", "titech2", "osaka", "nii", "kek", "nagoya", "tkb")
SEVEN_FILE = os.path.join("lab", "seven-sites.toml")
MATRICES = {"nominal": SEVEN_FILE, "measured": os.path.join("lab", "seven-sites-measured.toml")}
KEK_WRITE = {0.9: "parallel ftp 97.3, put 89.5, Kerberos ftp 64.0, scp 32.4, iRODS iput 23.5",
             10: "iRODS iput 24.0, scp 25.2, parallel ftp 18.1, put 15.9, Kerberos ftp 10.0"}
KEK_READ = {0.9: "parallel ftp 86.5, cat 85.2, Kerberos ftp 83.0, scp 31.3, iRODS iget 16.1",
            10: "iRODS iget 21.1, Kerberos ftp 18.0, parallel ftp 14.6, cat 14.1, scp 13.0"}

SRFS = {3.3: "SRFS on Ether 200 to 260 Mbit/s, netperf 252.6, NFS 10 to 20",
        4.0: "SRFS on Ether 180 to 200 Mbit/s, netperf 146.8, NFS 10 to 20"}


def srfs_path(rtt):
    """4.0 ms is the way through a VPN, as in lab/srfs.toml."""
    return Path(G, rtt, mtu=1400 if rtt == 4.0 else 1500)


def papers():
    """(a) The tables of the papers."""
    found = []
    for rtt in (0.9, 10):
        paper = [f"KEK 2009, write, MB/s: {KEK_WRITE[rtt]}", f"KEK 2009, read, MB/s: {KEK_READ[rtt]}"]
        found.append(Scenario(f"a1-{rtt:g}ms", "KEKCC's file", Path(G, rtt), KEK, paper=paper))
    for sender, rtt in SENDERS.items():
        path = Path(10 * G, rtt, file=SEVEN_FILE, src=sender, dst="titech", sites=SEVEN)
        times = {"titech2": 4, "tkb": 6}.get(sender)
        paper = [f"RENKEI-PoP 2010, Gfarm from {sender}: one by one {times} times slower than the archive"] if times else []
        found.append(Scenario(f"a2-{sender}-files", f"Montage from {sender}", path, MONTAGE, paper=paper))
        found.append(Scenario(f"a2-{sender}-archive", f"Montage from {sender}, archive", path, ARCHIVE, paper=paper))
    reservoir = ["Data Reservoir SC2003: 7.01 of 8.2 Gbit/s disk to disk at 350 ms, 85 % of the bottleneck; "
                 "the same team's record of 2006: 9.08 of 10 Gbit/s, memory"]
    found.append(Scenario("a3", "Data Reservoir's distance", Path(G, 350), LARGE, paper=reservoir, drawn=True))
    found += [Scenario(f"a4-{rtt:g}ms", "SRFS's path", srfs_path(rtt), HALF, paper=[paper]) for rtt, paper in SRFS.items()]
    for name, file in MATRICES.items():
        path = Path(file=file, src=SEVEN[0], dst=SEVEN[1], sites=SEVEN)
        found.append(Scenario(f"a5-{name}", f"the matrices of {file}", path, None, kind="matrix"))
    return found


PATHS = {"b-10": Path(5 * G, 10), "b-100-1e4": Path(2 * G, 100, 1e-4), "b-100-1e3": Path(2 * G, 100, 1e-3),
         "b-350": Path(2 * G, 350), "b-1g": Path(G, 100)}
KINDS = {"file": LARGE, "montage": MONTAGE, "tiny": TINY}


def grid():
    """(b) Three kinds of data over five paths; two of them again with the kernel's own settings."""
    found = [Scenario(f"{name}-{kind}", "", path, what, drawn=kind == "file" and path.rtt_ms == 350,
                      floor=(name, kind) == ("b-10", "file"))
             for name, path in PATHS.items() for kind, what in KINDS.items()]
    found += [Scenario(f"{name}-file-stock", "stock kernel settings", PATHS[name], LARGE, kernel="stock")
              for name in ("b-10", "b-100-1e4")]
    found.append(Scenario("b-near-tiny", "in one building", Path(5 * G, 0.2), TINY))
    found.append(Scenario("b-near2g-tiny", "near, at the rate of b-350", Path(2 * G, 0.2), TINY, SWEEP))
    shallow = [*FILE[:1], "renkei-unpaced", *FILE[1:]]
    found.append(Scenario("b-shallow-file", "shallow queue", Path(2 * G, 100, queue="0.01 BDP"), LARGE, shallow))
    return found


def rows():
    """(d) What the grid does not show: ramp, steady rate, memory, neighbours, limits, single streams."""
    far, mid = PATHS["b-350"], Path(2 * G, 100)
    found = [Scenario("ramp", "a cold link and a second job within a minute", far, LARGE, RAMP),
             Scenario("memory", "16 streams", far, LARGE, ["renkei-16", "renkei", "gridftp", "rclone"], trace=True)]
    points = [(rate, rtt) for rate in (1, 2) for rtt in (0.2, 10, 100, 350)] + [(5, 10)]
    found += [Scenario(f"steady-{rate}g-{rtt:g}", "rate after the ramp", Path(rate * G, rtt), LARGE, ["renkei", "gridftp"],
                       trace=True, eight=True) for rate, rtt in points]
    found += [Scenario(f"sharing-{rate}g-{rtt}", "beside one flow of iperf3", Path(rate * G, rtt), LARGE, ["renkei"],
                       kind="sharing") for rate, rtt in ((1, 20), (2, 100))]
    found.append(Scenario("jobs", "two jobs at once", mid, LARGE, ["renkei"], kind="jobs"))
    for rtt in (10, 350):
        for cap, what in ((100, QUARTER), (800, GIGA)):
            found.append(Scenario(f"limit-{cap}m-{rtt}", "rate limit", Path(2 * G, rtt), what, ["renkei"], kind="limit",
                                  cap=cap * M, trace=True))
    found.append(Scenario("limit-100m-10-tiny", "rate limit", Path(2 * G, 10), TINY, ["renkei"], kind="limit", cap=100 * M,
                          trace=True))
    found += [Scenario(name, "eight streams with CUBIC", path, EIGHT, ["renkei-8"], kind="cooperative")
              for name, path in (("cooperative", far), ("cooperative-shallow", Path(2 * G, 350, queue="0.1 BDP")))]
    return found


def loopback():
    """(c) No network to speak of: what the programs themselves cost."""
    return [Scenario(f"c-{kind}", "between two namespaces", Path(), what) for kind, what in KINDS.items()]


def sweeps():
    """The points of the plots."""
    found = [Scenario(f"p-rtt-{rtt:g}", "", Path(G, rtt), GIGA, SWEEP, plot=["rtt", rtt]) for rtt in (0.2, 10, 100, 350)]
    found += [Scenario(f"p-rtt2g-{rtt:g}", "", Path(2 * G, rtt), LARGE, SWEEP, plot=["rtt2g", rtt])
              for rtt in (0.2, 10, 100, 350)]
    found += [Scenario(f"p-loss-{loss:g}", "", Path(G, 100, loss), GIGA, SWEEP, plot=["loss", loss])
              for loss in (1e-5, 1e-4, 1e-3, 1e-2)]
    sizes = {1000: 20000, 10_000: 20000, 100_000: 5000, M: 1000, 10 * M: 100}
    found += [Scenario(f"p-size-{size}", "", Path(G, 10), equal(size, count), SWEEP, plot=["size", size])
              for size, count in sizes.items()]
    return found


THROUGH = ["renkei-mount-read", "renkei-mount-write", "sshfs-read", "sshfs-write"]
MOUNTS = ["renkei", "renkei-mount-read", "renkei-mount-write", "sshfs-read", "sshfs-write", "rclone-mount-read",
          "nfs-ganesha"]


def mounts():
    """(m) Through a mounted file system: one file and a tree beside a copy, SRFS's table, a replica here, small files."""
    found = [Scenario(f"m-{rtt}", "through a mount", Path(G, rtt), GIGA, MOUNTS) for rtt in (10, 100, 350)]
    found.append(Scenario("m-montage", "Montage out of and into a mount", Path(G, 10), MONTAGE,
                          ["renkei", "renkei-mount-followed", "renkei-mount-early", *THROUGH]))
    found += [Scenario(f"m-srfs-{rtt:g}", "SRFS's table: I/O lengths", srfs_path(rtt), HALF, THROUGH, paper=[SRFS[rtt]],
                       kind="lengths") for rtt in SRFS]
    found.append(Scenario("m-local", "a replica of this machine", Path(), GIGA, ["renkei-mount-local", "native"],
                          kind="local"))
    small = ["renkei-mount-write", "renkei-mount-early", "gfarm2fs-write", "sshfs-write", "native"]
    found.append(Scenario("m-small", "small files", Path(G, 0.2), None, small, kind="small"))
    return found


def volumes():
    """(v) Volumes over sites: listing a large tree, many files from afar, a site that begins to follow."""
    found = [Scenario("v-list-350", "a large tree where it is followed", Path(G, 350), None, ["renkei"], kind="listing")]
    found += [Scenario(f"v-bulk-{rtt:g}", "many files from afar", Path(G, rtt), None, ["renkei"], kind="bulk")
              for rtt in (0.2, 100)]
    found += [Scenario(name, "a site begins to follow", path, None, ["renkei"], kind="joining")
              for name, path in (("v-join-0", Path()), ("v-join-100", Path(G, 100)))]
    return found


HTTP = [f"{server}-{client}-{{verb}}" for server in ("renkei", "nginx", "xrootd", "rclone") for client in ("curl", "davix")]


TPC = ["renkei-pops", "renkei-tpc", "renkei-tpc-http", "xrootd-tpc"]


def web():
    """(h) One file over HTTPS: other programs' clients, the servers beside one another; copies between two servers; objects."""
    found = [Scenario(f"h-10-{verb}", f"{verb.upper()} over HTTPS", PATHS["b-10"], LARGE,
                      [name.format(verb=verb) for name in HTTP]) for verb in ("get", "put")]
    found.append(Scenario("h-10-crowd", "GET over HTTPS, alone and beside 2,000 clients", PATHS["b-10"], LARGE,
                          [f"{server}-curl-{kind}" for server in ("renkei", "nginx") for kind in ("get", "crowd")], trace=True))
    found += [Scenario(f"h-100-tpc-{name}", "third-party copies", Path(2 * G, 100), what, TPC)
              for name, what in (("file", LARGE), ("small", equal(2 * M, 1000)))]
    return found + objects()


def objects():
    """(h) Objects over S3: small ones by many clients, and lists of a million plain files."""
    near = Path()
    return [Scenario("h-s3-small", "small objects over S3", near, None, ["renkei-s3", "minio", "versitygw", "rclone-s3"],
                     kind="objects"),
            Scenario("h-s3-list", "a million keys over S3", near, None, ["renkei-s3"], kind="keys")]


def every():
    return papers() + grid() + rows() + loopback() + sweeps() + mounts() + volumes() + web()


# What `--quick` measures, the whole amount in three rounds: a line of "What must hold" each, and peers that tell how fast the machine is.
QUICK = ["b-10-file", "b-10-montage", "b-10-tiny", "b-350-file", "b-100-1e3-file", "b-shallow-file"]
QUICK_PEERS = ["renkei", "gridftp", "rsync", "LOCAL", "LOCAL-unsynced"]


def selected(words):
    """The scenarios the words name, in the order of the words: by id, else by the beginning of it up to a dash, or by
    the letter of their group; all in the order of the list if there is no word."""
    everything = every()
    ids = {one.id for one in everything}

    def named(word):
        group = {"a": papers, "b": grid, "c": loopback, "d": rows, "p": sweeps, "m": mounts, "v": volumes,
                 "h": web}.get(word)
        of_group = {one.id for one in group()} if group else ()
        return [one for one in everything
                if (one.id == word if word in ids else one.id.startswith(f"{word}-") or one.id in of_group)]
    if not words:
        return everything
    return list({one.id: one for word in words for one in named(word)}.values())


def topology_file(path, folder):
    """The file to give to `renkei lab up`; a shipped one without its PoPs, which the bench does not use."""
    text = path.topology()
    if path.file:
        try:
            with open(os.path.join(REPOSITORY, path.file)) as shipped:
                text = re.sub(r"(?m)^pop *= *true", "pop = false", shipped.read())
        except OSError as error:
            raise Fail(f"{path.file}: {error.strerror}") from None
    made = os.path.join(folder, "path.toml")
    with open(made, "w") as out:
        out.write(text)
    return made

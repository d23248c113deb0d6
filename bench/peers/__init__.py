"""All programs that are compared, by name."""

from bench.peers import floor, gfarm, gridftp, http, lftp, mounts, nfs, rclone, renkei, rsync, s3, ssh, tpc, xrootd

MODULES = [renkei, gridftp, rsync, rclone, xrootd, lftp, ssh, gfarm, floor, mounts, nfs, http, s3, tpc]
PEERS = {peer.name: peer for module in MODULES for peer in module.PEERS}

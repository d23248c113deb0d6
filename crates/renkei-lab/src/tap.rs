//! A site's network interface: a TAP device in a namespace, whose descriptor this process holds.
//!
//! The device offers the namespace segmentation and checksum offload, so that frames of up to 64 KB pass whole, each
//! behind a `virtio_net_hdr`. It is removed when its descriptor is closed. Addresses, routes and `up` are the
//! caller's.

use renkei_core::error::{Code, Error};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{c_int, c_ulong};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// `TUN_F_CSUM`, `_TSO4`, `_TSO6`, `_TSO_ECN`: offloads that the wire supports.
const OFFLOADS: c_ulong = 0x01 | 0x02 | 0x04 | 0x08;
/// `TUN_F_USO4`, `_USO6`: since Linux 6.2.
const UDP_OFFLOADS: c_ulong = 0x20 | 0x40;
/// Queue length of the device. A burst of a whole window may come between two turns of the wire.
const QUEUE_FRAMES: c_int = 10_000;
/// The device every TAP is made from.
const TUN: &str = "/dev/net/tun";

/// Parameters of a new interface.
#[derive(Clone, Debug)]
pub struct TapParams<'a> {
    /// The namespace, as `ip netns add` left it below /run/netns; `None` is this thread's own.
    pub namespace: Option<&'a Path>,
    /// Its name, at most 15 bytes.
    pub name: &'a str,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// Largest IP packet.
    pub mtu: u32,
}

/// The wire's end of an interface.
#[derive(Debug)]
pub struct Tap(OwnedFd);

impl Tap {
    /// Makes the interface, which is down at first.
    ///
    /// # Errors
    /// `SystemCall` without root or /dev/net/tun, `PathNotFound` without the namespace.
    pub fn create(params: &TapParams<'_>) -> Result<Tap, Error> {
        // A thread of its own, which ends here, so that no other thread of this process changes its namespace.
        let made = std::thread::scope(|scope| scope.spawn(|| make(params)).join());
        made.unwrap_or_else(|_| Err(Error::new(Code::Internal, "tap", params.name, "the thread panicked")))
    }

    /// Reads one frame behind its header into the spare room of `buffer`; false if there is none now.
    ///
    /// # Errors
    /// The error of the device, once its namespace is gone.
    pub fn read(&self, buffer: &mut Vec<u8>) -> rustix::io::Result<bool> {
        match rustix::io::read(&self.0, rustix::buffer::spare_capacity(buffer)) {
            Ok(length) => Ok(length > 0),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Writes one frame behind its header to the interface; false if it was refused (it is down, or no memory).
    pub fn write(&self, buffer: &[u8]) -> bool {
        rustix::io::write(&self.0, buffer).is_ok()
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn make(params: &TapParams<'_>) -> Result<Tap, Error> {
    let failed = |op: &'static str| move |errno: Errno| Error::new(Code::SystemCall, op, params.name, errno);
    if let Some(path) = params.namespace {
        enter(path)?;
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let tap = rustix::fs::open(TUN, flags, Mode::empty())
        .map_err(|errno| Error::new(Code::SystemCall, "open", TUN, errno))?;
    let mut request = Request::new(params.name)?;
    request.set_flags((libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16);
    request.send(&tap, libc::TUNSETIFF as c_ulong).map_err(failed("tap"))?;
    set_offloads(&tap).map_err(failed("offload"))?;
    set_properties(params, &mut request)?;
    Ok(Tap(tap))
}

fn enter(path: &Path) -> Result<(), Error> {
    let failed = |errno| Error::new(Code::SystemCall, "setns", path.display(), errno);
    let file =
        File::open(path).map_err(|cause| Error::new(Code::PathNotFound, "open", path.display(), cause))?;
    let kind = rustix::thread::LinkNameSpaceType::Network;
    rustix::thread::move_into_link_name_space(file.as_fd(), Some(kind)).map_err(failed)
}

fn set_offloads(tap: &OwnedFd) -> Result<(), Errno> {
    set_offload_flags(tap, OFFLOADS | UDP_OFFLOADS).or_else(|_| set_offload_flags(tap, OFFLOADS))
}

fn set_offload_flags(tap: &OwnedFd, flags: c_ulong) -> Result<(), Errno> {
    // SAFETY: the descriptor is open; TUNSETOFFLOAD takes its argument by value.
    done(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETOFFLOAD as _, flags) })
}

fn set_properties(params: &TapParams<'_>, request: &mut Request) -> Result<(), Error> {
    let failed = |op: &'static str| move |errno: Errno| Error::new(Code::SystemCall, op, params.name, errno);
    let (family, kind) = (rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM);
    let socket = rustix::net::socket(family, kind, None).map_err(failed("socket"))?;
    request.set_mac(params.mac);
    request.send(&socket, libc::SIOCSIFHWADDR as c_ulong).map_err(failed("set mac"))?;
    request.set_number(params.mtu as c_int);
    request.send(&socket, libc::SIOCSIFMTU as c_ulong).map_err(failed("set mtu"))?;
    request.set_number(QUEUE_FRAMES);
    request.send(&socket, libc::SIOCSIFTXQLEN as c_ulong).map_err(failed("set txqueuelen"))
}

/// The kernel's `ifreq` for one interface.
struct Request(libc::ifreq);

impl Request {
    fn new(name: &str) -> Result<Request, Error> {
        // SAFETY: ifreq is plain numbers, for which all zeros is a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains(['/', '\0', ' ', '%']) {
            return Err(Error::new(
                Code::UsageInvalid,
                "tap",
                name,
                "an interface's name has 1 to 15 plain bytes",
            ));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        Ok(Request(request))
    }

    fn set_flags(&mut self, flags: i16) {
        self.0.ifr_ifru.ifru_flags = flags;
    }

    fn set_number(&mut self, number: c_int) {
        // The kernel reads this field as MTU or queue length too: all are an int at the same place.
        self.0.ifr_ifru.ifru_mtu = number;
    }

    fn set_mac(&mut self, mac: [u8; 6]) {
        let data = std::array::from_fn(|at| *mac.get(at).unwrap_or(&0) as libc::c_char);
        self.0.ifr_ifru.ifru_hwaddr = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: data };
    }

    fn send(&mut self, to: &OwnedFd, request: c_ulong) -> Result<(), Errno> {
        // SAFETY: the descriptor is open, and each of these requests reads and writes one ifreq at the address.
        done(unsafe { libc::ioctl(to.as_raw_fd(), request as _, &raw mut self.0) })
    }
}

fn done(result: c_int) -> Result<(), Errno> {
    if result >= 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_kernel_would_refuse_are_refused() {
        for name in ["", "sixteen-bytes-xx", "a/b", "a b", "%d"] {
            assert_eq!(Request::new(name).err().map(|error| error.code), Some(Code::UsageInvalid), "{name}");
        }
        assert!(Request::new("fifteen-bytes-x").is_ok());
    }

    #[test]
    fn a_missing_namespace_is_named() {
        let missing = Path::new("/nowhere/netns");
        let params = TapParams { namespace: Some(missing), name: "eth0", mac: [2, 0, 0, 0, 0, 1], mtu: 1500 };
        let error = Tap::create(&params).unwrap_err();
        assert_eq!((error.code, error.subject.as_str()), (Code::PathNotFound, "/nowhere/netns"));
    }
}

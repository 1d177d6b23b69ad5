//! The port of rank 0: taken by the launcher before any rank starts and held until the run ends.
//!
//! Rank 0 itself must listen on `MASTER_PORT` (c10d's `TCPStore` cannot take over a socket), so
//! the launcher binds the port with `SO_REUSEADDR` and never listens on it. While such a socket
//! is there, the kernel gives the port to nobody who asks for a free one, yet a program that sets
//! `SO_REUSEADDR` and names the port (`TCPStore` does, so do Rust's and Go's listeners) may bind
//! and listen. There is no moment at which the port is free, restarts keep it, and it goes with
//! the launcher, however that ends.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6, TcpListener};
use std::os::fd::OwnedFd;

use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use crate::sys;
use crate::trouble::Trouble;

/// A port that is ours, though nobody listens on it yet.
pub(crate) struct HeldPort {
    /// Never used again, but the port is ours as long as it is open.
    _socket: OwnedFd,
    number: u16,
}

impl HeldPort {
    /// Takes the port, or a free one for 0.
    pub(crate) fn take(port: u16) -> Result<Self, Trouble> {
        let socket = bind(port).map_err(|error| taken(port, &error))?;
        let number = net::getsockname(&socket)
            .ok()
            .and_then(|address| std::net::SocketAddr::try_from(address).ok())
            .map(|address| address.port())
            .ok_or_else(|| Trouble::work("cannot read the number of the port just taken"))?;
        Ok(Self { _socket: socket, number })
    }

    /// Its number, never 0.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// A second socket on the port that listens, for the launchers of other nodes. Once they
    /// have joined it is closed, and rank 0 takes its place; joined connections stay.
    pub(crate) fn listen(&self) -> Result<TcpListener, Trouble> {
        let socket = bind(self.number).map_err(|error| taken(self.number, &error))?;
        net::listen(&socket, 1024).map_err(|error| taken(self.number, &error.into()))?;
        Ok(TcpListener::from(socket))
    }
}

/// Binds a socket on all addresses of this machine, with both families where there is IPv6:
/// `TCPStore` does the same, and a port that is free in one family only is not free.
fn bind(port: u16) -> io::Result<OwnedFd> {
    let open = |family| -> io::Result<OwnedFd> {
        let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        Ok(socket)
    };
    let both = open(AddressFamily::INET6).and_then(|socket| {
        sockopt::set_ipv6_v6only(&socket, false)?;
        net::bind(&socket, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))?;
        Ok(socket)
    });
    match both {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            let socket = open(AddressFamily::INET)?;
            net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
            Ok(socket)
        }
        other => other,
    }
}

fn taken(port: u16, error: &io::Error) -> Trouble {
    let holder =
        sys::port_holder(port).map_or_else(String::new, |holder| format!(" by process {holder}"));
    match error.kind() {
        io::ErrorKind::AddrInUse => Trouble::work(format!(
            "port {port} of this machine is taken{holder}: end that process, give another \
             --master-port to all nodes, or 0 for a free one when there is one node"
        )),
        io::ErrorKind::PermissionDenied => Trouble::work(format!(
            "port {port} needs privileges ({error}): give a --master-port above 1023"
        )),
        _ => Trouble::work(format!("cannot take port {port} of this machine: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::net::TcpStream;

    #[test]
    fn free_ports_are_never_the_held_one() {
        let held = HeldPort::take(0).unwrap();
        let others: Vec<_> = (0..200).map(|_| HeldPort::take(0).unwrap()).collect();
        let numbers: HashSet<_> = others.iter().map(HeldPort::number).collect();
        assert_eq!(numbers.len(), others.len());
        assert!(!numbers.contains(&held.number()));
    }

    #[test]
    fn rank_0_may_listen_while_joined_connections_live() {
        let held = HeldPort::take(0).unwrap();
        let listener = held.listen().unwrap();
        let _client = TcpStream::connect(("127.0.0.1", held.number())).unwrap();
        let _joined = listener.accept().unwrap();
        drop(listener);
        let refused = TcpStream::connect(("127.0.0.1", held.number())).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let rank_0 = TcpListener::bind(("0.0.0.0", held.number())).unwrap();
        TcpStream::connect(("127.0.0.1", held.number())).unwrap();
        drop(rank_0);
        TcpListener::bind(("127.0.0.1", held.number())).unwrap();
    }

    #[test]
    fn a_port_with_a_listener_is_taken() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = other.local_addr().unwrap().port();
        let error = HeldPort::take(port).err().unwrap();
        assert!(error.text.contains(&format!("port {port} of this machine is taken")), "{error}");
        assert!(error.text.contains(&std::process::id().to_string()), "{error}");
    }
}

//! The number of datagrams that the system has dropped because the queue of their socket was full.

use std::{
    fs, io,
    net::UdpSocket,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Both tables of the system's UDP sockets. Some systems have no IPv6.
const TABLES: [&str; 2] = ["/proc/self/net/udp", "/proc/self/net/udp6"];

/// The drops of some sockets.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    inodes: Mutex<Vec<u64>>,
    /// The highest count so far: the count of a socket is lost when it is closed.
    most: AtomicU64,
}

impl Drops {
    /// Counts the drops of this socket too.
    pub(crate) fn watch(&self, socket: &UdpSocket) -> io::Result<()> {
        let inode = rustix::fs::fstat(socket)?.st_ino;
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner).push(inode);
        Ok(())
    }

    /// The drops so far. Reads all UDP sockets of the network namespace: some 50 µs if there are few.
    pub(crate) fn count(&self) -> u64 {
        let inodes = self.inodes.lock().unwrap_or_else(PoisonError::into_inner);
        let tables = TABLES.iter().filter_map(|path| fs::read_to_string(path).ok());
        let count = tables.map(|table| dropped_in(&table, &inodes)).sum();
        self.most.fetch_max(count, Relaxed).max(count)
    }
}

/// The sum of the last column in the lines of these inodes.
fn dropped_in(table: &str, inodes: &[u64]) -> u64 {
    let line = |line: &str| {
        let mut columns = line.split_ascii_whitespace();
        let inode = columns.nth(INODE)?.parse().ok()?;
        let drops = columns.last()?.parse::<u64>().ok()?;
        inodes.contains(&inode).then_some(drops)
    };
    table.lines().skip(1).filter_map(line).sum()
}

/// The column of the inode (proc_pid_net(5)).
const INODE: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_to_a_full_socket_are_counted_for_it_and_for_no_other() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let [full, other, sender] = [(); 3].map(|()| UdpSocket::bind(address).expect("loopback"));
            let (drops, others) = (Drops::default(), Drops::default());
            drops.watch(&full).expect("a socket");
            others.watch(&other).expect("a socket");
            assert_eq!(drops.count(), 0);
            // The default of the system is 208 KiB, and each datagram counts for 4 KiB or more.
            for _ in 0..1000 {
                sender.send_to(&[0; 1400], full.local_addr().expect("bound")).expect("loopback");
            }
            let count = drops.count();
            assert!((1..1000).contains(&count), "{count} at {address}");
            assert_eq!(others.count(), 0);
            drop(full);
            assert_eq!(drops.count(), count, "a counter does not go back");
        }
    }
}

//! AF_XDP sockets: one queue of an interface, the memory that its frames are in, and four rings of
//! descriptors.
#![expect(unsafe_code, reason = "the kernel and this process share the memory and the rings")]

use std::{
    fmt, io,
    marker::PhantomData,
    os::fd::OwnedFd,
    ptr::{self, NonNull},
    slice,
    sync::{
        Arc,
        atomic::{
            AtomicU32,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use rustix::{
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap},
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
        sockopt::{
            set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size,
            set_xdp_umem_fill_ring_size, set_xdp_umem_reg, xdp_mmap_offsets, xdp_statistics,
        },
        xdp::{
            SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
            XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions, XdpRingFlags,
            XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
        },
    },
};

/// The bytes of a place for a frame. The kernel leaves 256 bytes free before a frame that it has received.
pub const FRAME: usize = 2048;

/// Descriptors per ring: two milliseconds of a million datagrams per second.
const RING: u32 = 2048;

/// One half of the places is for frames to be received, the other half for frames to be sent.
const FRAMES: u32 = 2 * RING;

const BYTES: usize = FRAMES as usize * FRAME;

/// A frame that belongs to this process until [`Queue::send`] or [`Queue::give_back`] takes it. A frame that
/// is dropped is lost to its queue.
#[derive(Debug)]
#[must_use = "a frame that is dropped is lost to its queue"]
pub struct Frame {
    /// The number of its queue.
    queue: u32,
    /// The offset of its bytes in the memory of the queue.
    at: u32,
    len: u32,
}

/// The socket of one queue of an interface.
pub struct Queue {
    socket: Arc<OwnedFd>,
    /// Tells frames of different queues apart.
    number: u32,
    memory: Mapping,
    fill: Ring<u64>,
    completed: Ring<u64>,
    received: Ring<XdpDesc>,
    to_send: Ring<XdpDesc>,
    /// Places without a frame.
    free: Vec<u32>,
    /// The number of places that the kernel has for frames to be received.
    offered: u32,
}

/// Whether the driver moves frames without copying them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copying {
    Copy,
    ZeroCopy,
}

/// Frames for a queue that did not reach this process, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// The ring of received frames was full.
    pub ring_full: u64,
    /// No place for a frame was free.
    pub no_place: u64,
}

impl Statistics {
    /// The statistics of the queue of a socket since it was opened.
    pub(crate) fn of(socket: &OwnedFd) -> io::Result<Self> {
        let all = xdp_statistics(socket)?;
        Ok(Self { ring_full: all.rx_ring_full.unwrap_or(0), no_place: all.rx_dropped })
    }
}

impl Queue {
    /// Opens the socket of a queue of an interface, by their numbers. It receives as soon as a program
    /// redirects frames to it.
    pub(crate) fn open(interface: u32, queue: u32, copying: Copying) -> io::Result<Self> {
        static QUEUES: AtomicU32 = AtomicU32::new(0);
        let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        // SAFETY: a mapping that the system places overlaps no other.
        let memory = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
            Mapping { start: mmap_anonymous(ptr::null_mut(), BYTES, access, flags)?, len: BYTES }
        };
        let register = XdpUmemReg {
            addr: memory.start.expose_provenance() as u64,
            len: BYTES as u64,
            chunk_size: FRAME as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        set_xdp_umem_reg(&socket, register)?;
        set_xdp_umem_fill_ring_size(&socket, RING)?;
        set_xdp_umem_completion_ring_size(&socket, RING)?;
        set_xdp_rx_ring_size(&socket, RING)?;
        set_xdp_tx_ring_size(&socket, RING)?;
        let offsets = xdp_mmap_offsets(&socket)?;
        // SAFETY: the rings have this size, and elements of these types.
        let (fill, completed, received, to_send) = unsafe {
            (
                Ring::map(&socket, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr)?,
                Ring::map(&socket, XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr)?,
                Ring::map(&socket, XDP_PGOFF_RX_RING, &offsets.rx)?,
                Ring::map(&socket, XDP_PGOFF_TX_RING, &offsets.tx)?,
            )
        };
        let copying = match copying {
            Copying::Copy => SocketAddrXdpFlags::XDP_COPY,
            Copying::ZeroCopy => SocketAddrXdpFlags::XDP_ZEROCOPY,
        };
        let flags = copying | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        let number = QUEUES.fetch_add(1, Relaxed);
        let (free, offered) = ((0..FRAMES).collect(), 0);
        let socket = Arc::new(socket);
        let mut opened = Self { socket, number, memory, fill, completed, received, to_send, free, offered };
        // A driver without copies takes places as soon as it has the queue.
        opened.offer_places();
        bind(&opened.socket, &SocketAddrXdp::new(flags, interface, queue))?;
        Ok(opened)
    }

    /// Returns a received frame, or `None` if there is none. Makes no system call; copies nothing.
    ///
    /// # Panics
    /// If the kernel describes a frame outside of its place.
    pub fn receive(&mut self) -> Option<Frame> {
        let XdpDesc { addr, len, .. } = self.received.take()?;
        // A kernel with such a fault would corrupt the memory of this process.
        let end = addr % FRAME as u64 + u64::from(len);
        assert!(addr < BYTES as u64 && end <= FRAME as u64, "a frame is in its place");
        self.offered -= 1;
        Some(Frame { queue: self.number, at: addr as u32, len })
    }

    /// Returns a frame to be written, of [`FRAME`] bytes with any content. `None` if all are in use; after
    /// [`flush`](Self::flush) there may be some again.
    pub fn take(&mut self) -> Option<Frame> {
        if self.free.is_empty() {
            self.collect();
        }
        let place = self.free.pop()?;
        Some(Frame { queue: self.number, at: place * FRAME as u32, len: FRAME as u32 })
    }

    /// Returns the bytes of a frame: the received bytes, or all of its place.
    ///
    /// # Panics
    /// If the frame is of another queue; so do all methods that take a frame.
    pub fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        let start = self.start(frame);
        // SAFETY: only this process has the frame, and its only owner is borrowed.
        unsafe { slice::from_raw_parts(start, frame.len as usize) }
    }

    /// Returns the same bytes, to be written.
    pub fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let start = self.start(frame);
        // SAFETY: as above, and its owner is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(start, frame.len as usize) }
    }

    fn start(&self, frame: &Frame) -> *mut u8 {
        assert!(frame.queue == self.number, "a frame belongs to one queue");
        // SAFETY: frames are made with places inside of the memory.
        unsafe { self.memory.start.cast::<u8>().add(frame.at as usize) }
    }

    /// Appends the first `len` bytes of a frame to the ring, which [`flush`](Self::flush) sends. Returns
    /// `false` if there is no room: the frame is then not sent, and its place is free.
    ///
    /// # Panics
    /// If `len` exceeds the bytes of the frame.
    pub fn send(&mut self, frame: Frame, len: usize) -> bool {
        assert!(frame.queue == self.number && len <= frame.len as usize, "a part of a frame of this queue");
        let description =
            XdpDesc { addr: frame.at.into(), len: len as u32, options: XdpDescOptions::empty() };
        let has_room = self.to_send.put(description);
        if !has_room {
            self.give_back(frame);
        }
        has_room
    }

    /// Takes back a frame that is not to be sent.
    pub fn give_back(&mut self, frame: Frame) {
        assert!(frame.queue == self.number, "a frame belongs to one queue");
        self.free.push(frame.at / FRAME as u32);
    }

    /// Sends the frames of [`send`](Self::send), and makes room for frames to be received. Call it after each
    /// batch: it makes a system call for each 32 frames in copy mode.
    ///
    /// # Errors
    /// The error of the system, if the interface is gone or down. Frames that were to be sent may be lost.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to_send.show();
        let mut result = Ok(());
        let mut waiting = self.to_send.waiting();
        while waiting > 0 && self.to_send.needs_wakeup() {
            match send(&self.socket, &[], SendFlags::DONTWAIT) {
                Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS) => {}
                Err(error) => {
                    result = Err(error.into());
                    break;
                }
            }
            // In copy mode a call sends some frames; without copies, the driver is awake now.
            let left = self.to_send.waiting();
            if left == waiting {
                break;
            }
            waiting = left;
        }
        self.collect();
        self.offer_places();
        if self.fill.needs_wakeup() {
            // A driver without copies that had no places. There is nothing to receive this way.
            let _ = recv(&self.socket, &mut [0_u8; 0], RecvFlags::DONTWAIT);
        }
        result
    }

    /// Takes back the places of frames that were sent.
    fn collect(&mut self) {
        while let Some(address) = self.completed.take() {
            self.free.push((address / FRAME as u64) as u32);
        }
    }

    /// Offers places for frames to be received: half of all places.
    fn offer_places(&mut self) {
        while self.offered < RING
            && let Some(place) = self.free.pop()
        {
            self.fill.put(u64::from(place) * FRAME as u64);
            self.offered += 1;
        }
        self.fill.show();
    }

    /// Its socket, which is readable when frames were received. Nothing else may be done with it.
    pub fn socket(&self) -> Arc<OwnedFd> {
        self.socket.clone()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("socket", &self.socket).finish_non_exhaustive()
    }
}

// SAFETY: its memory and rings are its own on this side.
unsafe impl Send for Queue {}

/// A mapping, which is removed when this is dropped.
struct Mapping {
    start: *mut std::ffi::c_void,
    len: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping has this length, and its owner has given up all pointers into it.
        let _ = unsafe { munmap(self.start, self.len) };
    }
}

/// One side of a ring of [`RING`] elements, of which the kernel has the other.
struct Ring<T> {
    _mapping: Mapping,
    produced: NonNull<AtomicU32>,
    consumed: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    elements: NonNull<T>,
    /// The position of this side.
    mine: u32,
    /// The position of the other side when it was last read.
    theirs: u32,
    elements_of: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// # Safety
    /// The ring at this offset of the socket has [`RING`] elements of this type, at these offsets.
    unsafe fn map(socket: &OwnedFd, at: u64, offsets: &XdpRingOffset) -> io::Result<Self> {
        // Linux has them since 5.4.
        let flags = offsets.flags.ok_or(io::ErrorKind::Unsupported)?;
        let len = offsets.desc as usize + RING as usize * size_of::<T>();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping that the system places overlaps no other.
        let start =
            unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED | MapFlags::POPULATE, socket, at)? };
        let mapping = Mapping { start, len };
        // SAFETY: the offsets are inside of the mapping.
        let part = |offset: u64| unsafe { NonNull::new_unchecked(start.cast::<u8>().add(offset as usize)) };
        Ok(Self {
            _mapping: mapping,
            produced: part(offsets.producer).cast(),
            consumed: part(offsets.consumer).cast(),
            flags: part(flags).cast(),
            elements: part(offsets.desc).cast(),
            mine: 0,
            theirs: 0,
            elements_of: PhantomData,
        })
    }

    fn of(word: &NonNull<AtomicU32>) -> &AtomicU32 {
        // SAFETY: it is in the mapping, which lives as long as this.
        unsafe { word.as_ref() }
    }

    fn slot(&self) -> *mut T {
        // SAFETY: an element inside of the ring.
        unsafe { self.elements.as_ptr().add((self.mine % RING) as usize) }
    }

    /// For the consumer: takes the next element.
    fn take(&mut self) -> Option<T> {
        if self.theirs == self.mine {
            self.theirs = Self::of(&self.produced).load(Acquire);
            if self.theirs == self.mine {
                return None;
            }
        }
        // SAFETY: the kernel has written it, and writes it again only when it was consumed.
        let element = unsafe { self.slot().read() };
        self.mine = self.mine.wrapping_add(1);
        Self::of(&self.consumed).store(self.mine, Release);
        Some(element)
    }

    /// For the producer: returns whether another element fits.
    fn has_room(&mut self) -> bool {
        if self.mine.wrapping_sub(self.theirs) == RING {
            self.theirs = Self::of(&self.consumed).load(Acquire);
        }
        self.mine.wrapping_sub(self.theirs) < RING
    }

    /// For the producer: adds an element, if it fits.
    fn put(&mut self, element: T) -> bool {
        let has_room = self.has_room();
        if has_room {
            // SAFETY: the kernel has consumed the earlier element.
            unsafe { self.slot().write(element) };
            self.mine = self.mine.wrapping_add(1);
        }
        has_room
    }

    /// For the producer: lets the kernel see the added elements.
    fn show(&self) {
        Self::of(&self.produced).store(self.mine, Release);
    }

    /// For its producer: the number of elements that the kernel has not consumed.
    fn waiting(&self) -> u32 {
        self.mine.wrapping_sub(Self::of(&self.consumed).load(Acquire))
    }

    fn needs_wakeup(&self) -> bool {
        let flags = XdpRingFlags::from_bits_retain(Self::of(&self.flags).load(Relaxed));
        flags.contains(XdpRingFlags::XDP_RING_NEED_WAKEUP)
    }
}

#[cfg(test)]
#[test]
fn a_kernel_with_rings_without_flags_is_not_supported() {
    let socket = std::fs::File::open("/dev/zero").unwrap().into();
    let offsets = XdpRingOffset { producer: 0, consumer: 64, desc: 128, flags: None };
    // SAFETY: it fails before it maps anything.
    let ring = unsafe { Ring::<u64>::map(&socket, 0, &offsets) };
    assert_eq!(ring.err().map(|error| error.kind()), Some(io::ErrorKind::Unsupported));
}

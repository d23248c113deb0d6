//! The socket of an HTTP connection, with a read buffer.
//!
//! rustls asks for 4 KiB at a time; without a buffer each is a system call, four or five a record. The buffer has memory
//! only while it has bytes, so idle connections cost none. It begins with the bytes that the port has read already.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Bytes read from the socket at a time: four records of TLS.
const BUFFER_BYTES: usize = 64 << 10;

/// A socket whose reads are buffered.
pub(super) struct BufferedSocket {
    buffer: Vec<u8>,
    /// The bytes of the buffer that are still to be returned.
    left: Range<usize>,
    sock: TcpStream,
}

impl BufferedSocket {
    /// Returns the bytes read before, then those of the socket.
    pub(super) fn new(received: Vec<u8>, sock: TcpStream) -> Self {
        BufferedSocket { left: 0..received.len(), buffer: received, sock }
    }

    /// Reads into the empty buffer. Its memory is given back while nothing comes, and at the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.buffer.clear();
        self.buffer.reserve_exact(BUFFER_BYTES);
        // Memory that is not zeroed before.
        let mut space = ReadBuf::uninit(self.buffer.spare_capacity_mut());
        let polled = Pin::new(&mut self.sock).poll_read(cx, &mut space);
        let filled = space.filled().len();
        // SAFETY: what is filled is initialised, and lies at the beginning of the capacity.
        unsafe { self.buffer.set_len(filled) };
        if filled == 0 {
            self.buffer = Vec::new();
        }
        self.left = 0..filled;
        polled
    }
}

impl AsyncRead for BufferedSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.left.is_empty() {
            ready!(this.poll_fill(cx))?;
        }
        let count = this.left.len().min(buf.remaining());
        buf.put_slice(&this.buffer[this.left.start..][..count]);
        this.left.start += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for BufferedSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.sock).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.sock).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.sock.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sock).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sock).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    #[tokio::test(flavor = "current_thread")]
    async fn bytes_come_in_order_and_an_idle_connection_has_no_buffer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut served = BufferedSocket::new(b"before".to_vec(), listener.accept().await.unwrap().0);
        let sent: Vec<u8> = (0..3 * BUFFER_BYTES).map(|at| at as u8).collect();
        let all = sent.clone();
        let sender = tokio::spawn(async move {
            client.write_all(&all).await.unwrap();
            client
        });
        let mut read = vec![0; 6 + sent.len()];
        for piece in read.chunks_mut(4096) {
            served.read_exact(piece).await.unwrap();
        }
        assert_eq!((&read[..6], read[6..] == sent), (&b"before"[..], true));
        let client = sender.await.unwrap();
        let mut more = [0; 1];
        let nothing = tokio::time::timeout(std::time::Duration::ZERO, served.read(&mut more)).await;
        assert!(nothing.is_err() && served.buffer.capacity() == 0);
        drop(client);
        assert_eq!(served.read(&mut more).await.unwrap(), 0);
    }
}

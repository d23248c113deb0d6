//! The bodies that clients send, with bounds on what is kept of them before signatures are verified.

use crate::error::refused;
use hyper::StatusCode;
use hyper::body::{Bytes, Frame, SizeHint};
use renkei_site::files::body::{self, Progress, Sink};
use s3s::dto::StreamingBlob;
use s3s::{Body, S3Error, S3ErrorCode, S3Request, S3Result, StdError};
use std::mem::{replace, take};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

/// Most bytes that are kept before any of them is passed on: of a signed chunk, whose signature is at its end.
const MAX_KEPT_BYTES: usize = 64 << 20;
/// Bytes of the pieces in which a form is passed on: each piece costs memory beside its content.
const PIECE_BYTES: usize = 64 << 10;

/// Bytes that came from a client and were not passed on yet.
#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<AtomicUsize>);

impl Kept {
    /// That of a request.
    pub(crate) fn of<T>(request: &S3Request<T>) -> Self {
        request.extensions.get().cloned().unwrap_or_default()
    }
}

/// The body that a client sends, with bounds on what is kept of it.
pub(crate) struct Incoming<B> {
    body: Pin<Box<B>>,
    progress: Arc<dyn Progress>,
    kept: Kept,
    /// The piece of a form that is being filled.
    piece: Option<Vec<u8>>,
}

impl<B: hyper::body::Body<Data = Bytes>> Incoming<B>
where
    StdError: From<B::Error>,
{
    pub(crate) fn new(body: B, is_form: bool, progress: &Arc<dyn Progress>, kept: &Kept) -> Self {
        let piece = is_form.then(Vec::new);
        Incoming { body: Box::pin(body), progress: progress.clone(), kept: kept.clone(), piece }
    }

    /// The next data; none at the end.
    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StdError>> {
        loop {
            match ready!(self.body.as_mut().poll_frame(context)).transpose()?.map(Frame::into_data) {
                Some(Ok(data)) => {
                    self.progress.step();
                    return Poll::Ready(Ok(Some(data)));
                }
                Some(Err(_)) => {}
                None => return Poll::Ready(Ok(None)),
            }
        }
    }

    /// The next piece of a form; none at its end.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StdError>> {
        while self.piece.as_ref().is_some_and(|piece| piece.len() < PIECE_BYTES) {
            let data = ready!(self.poll_data(context))?;
            let Some(piece) = &mut self.piece else { break };
            match data {
                Some(data) => piece.extend_from_slice(&data),
                None => {
                    let last = take(piece);
                    return Poll::Ready(Ok((!last.is_empty()).then(|| last.into())));
                }
            }
        }
        let piece = self.piece.get_or_insert_default();
        let rest = piece.split_off(PIECE_BYTES.min(piece.len()));
        Poll::Ready(Ok(Some(replace(piece, rest).into())))
    }
}

impl<B: hyper::body::Body<Data = Bytes>> hyper::body::Body for Incoming<B>
where
    StdError: From<B::Error>,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let polled = match self.piece {
            Some(_) => ready!(self.poll_piece(context)),
            None => ready!(self.poll_data(context)),
        };
        let is_form = self.piece.is_some();
        let bounded = polled.and_then(|data| {
            let bytes = data.as_ref().map_or(0, Bytes::len);
            match self.kept.0.fetch_add(bytes, Ordering::Relaxed) + bytes > MAX_KEPT_BYTES && !is_form {
                true => Err("a chunk has at most 64 MiB".into()),
                false => Ok(data),
            }
        });
        Poll::Ready(bounded.transpose().map(|data| data.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.piece.as_ref().is_none_or(Vec::is_empty) && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.piece {
            // Pieces of a form may be kept that are not counted any more.
            Some(piece) if !piece.is_empty() => SizeHint::default(),
            _ => self.body.size_hint(),
        }
    }
}

/// A body whose content is not kept any more once it is passed on.
struct Passed {
    body: Body,
    kept: Kept,
}

impl hyper::body::Body for Passed {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.kept.0.store(0, Ordering::Relaxed);
        Poll::Ready(frame)
    }
}

/// Passes a body to a sink.
///
/// # Errors
/// Those of the sink; `IncompleteBody`, `SignatureDoesNotMatch`, `XAmzContentSHA256Mismatch` of the body.
pub(crate) async fn receive<S: Sink<Error = S3Error>>(
    sink: S,
    body: Option<StreamingBlob>,
    progress: &Arc<dyn Progress>,
    kept: &Kept,
) -> S3Result<S> {
    let body = Passed { body: body.map(Body::from).unwrap_or_default(), kept: kept.clone() };
    body::receive(sink, body, progress, |error| lost(&*error)).await
}

/// The error of a body: its signatures and hashes are verified while it is read.
fn lost(error: &(dyn std::error::Error + Send + Sync)) -> S3Error {
    let told = error.to_string();
    let (code, status) = if told.contains("SignatureMismatch") {
        (S3ErrorCode::SignatureDoesNotMatch, StatusCode::FORBIDDEN)
    } else if told.contains("Sha256Mismatch") {
        (S3ErrorCode::Custom("XAmzContentSHA256Mismatch".into()), StatusCode::BAD_REQUEST)
    } else {
        (S3ErrorCode::IncompleteBody, StatusCode::BAD_REQUEST)
    };
    let message = format!("the content that came is not what was signed or announced: {told}");
    let mut refused = refused(code, message);
    refused.set_status_code(status);
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::body::Body as _;
    use std::collections::VecDeque;
    use std::future::poll_fn;

    struct Silent;

    impl Progress for Silent {
        fn step(&self) {}
        fn enter(&self) {}
        fn leave(&self) {}
        fn authenticated(&self) {}
    }

    struct Frames(VecDeque<Bytes>);

    impl hyper::body::Body for Frames {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
            Poll::Ready(self.0.pop_front().map(|data| Ok(Frame::data(data))))
        }
    }

    /// Lengths of the pieces that come out, and whether an error ended them.
    async fn pieces(frames: Vec<usize>, is_form: bool) -> (Vec<usize>, bool) {
        let frames = Frames(frames.into_iter().map(|bytes| Bytes::from(vec![1; bytes])).collect());
        let progress: Arc<dyn Progress> = Arc::new(Silent);
        let mut body = Incoming::new(frames, is_form, &progress, &Kept::default());
        let mut lengths = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            match frame {
                Ok(frame) => lengths.push(frame.into_data().unwrap().len()),
                Err(_) => return (lengths, true),
            }
        }
        (lengths, false)
    }

    #[tokio::test]
    async fn forms_come_in_large_pieces_and_a_chunk_is_bounded() {
        assert_eq!(pieces(vec![1; PIECE_BYTES + 3], true).await, (vec![PIECE_BYTES, 3], false));
        assert_eq!(
            pieces(vec![3 * PIECE_BYTES, 5], true).await.0,
            [PIECE_BYTES, PIECE_BYTES, PIECE_BYTES, 5]
        );
        assert_eq!(pieces(vec![1, 2], false).await, (vec![1, 2], false));
        let (passed, is_refused) = pieces(vec![1 << 20; 80], false).await;
        assert_eq!((passed.len() << 20, is_refused), (MAX_KEPT_BYTES, true));
    }
}

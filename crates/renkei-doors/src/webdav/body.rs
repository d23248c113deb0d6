//! Bodies: content that is made block by block, ahead of the client.

use crate::http::activity::Activity;
use axum::body::{Body, Bytes};
use hyper::body::Frame;
use renkei_core::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::task::JoinHandle;

/// Makes the next block of a body, or none at its end; blocks.
pub(super) type NextBlock = Box<dyn FnMut() -> Result<Option<Bytes>, Error> + Send>;

/// A body whose next block is made while the client takes the one before.
pub(super) fn streamed(next: NextBlock, activity: Activity) -> Body {
    let made = Some(make(next, &activity));
    Body::new(Streamed { made, activity })
}

type Made = (NextBlock, Result<Option<Bytes>, Error>);

fn make(mut next: NextBlock, activity: &Activity) -> JoinHandle<Made> {
    activity.spawn(move || {
        let block = next();
        (next, block)
    })
}

struct Streamed {
    /// The block that is being made; none at the end.
    made: Option<JoinHandle<Made>>,
    activity: Activity,
}

impl hyper::body::Body for Streamed {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Some(made) = &mut self.made else { return Poll::Ready(None) };
        let Poll::Ready(made) = Pin::new(made).poll(context) else { return Poll::Pending };
        let (next, block) = made.expect("a panic aborts the process");
        self.made = matches!(block, Ok(Some(_))).then(|| make(next, &self.activity));
        // The status is sent already: on an error the connection ends before the announced length.
        Poll::Ready(
            block
                .inspect_err(|error| tracing::warn!(%error, "content is cut short"))
                .transpose()
                .map(|block| block.map(Frame::data)),
        )
    }
}

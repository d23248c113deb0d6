//! The S3 door beside the others: requests that are signed as those of S3 go to `renkei-s3`, before any path is looked at.

use super::activity::Activity;
use crate::webdav::Client;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use renkei_s3::{Progress, is_s3, serve};
use renkei_site::Site;
use std::sync::Arc;

/// A router that answers requests of S3, and has others answered by another one.
pub(super) fn first(others: Router, site: Arc<Site>, client: Client) -> Router {
    others.layer(from_fn_with_state((site, client), answer))
}

async fn answer(
    State((site, client)): State<(Arc<Site>, Client)>,
    request: Request,
    others: Next,
) -> Response {
    let (head, body) = request.into_parts();
    if !is_s3(&head) {
        return others.run(Request::from_parts(head, body)).await;
    }
    let progress: Arc<dyn Progress> = Arc::new(client.activity);
    serve(site, client.address, progress, Request::from_parts(head, body)).await.map(Body::new)
}

impl Progress for Activity {
    fn step(&self) {
        Activity::step(self);
    }

    fn enter(&self) {
        Activity::enter(self);
    }

    fn leave(&self) {
        Activity::leave(self);
    }
}

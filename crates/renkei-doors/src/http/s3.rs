//! The S3 door beside the others: requests that are signed as those of S3 go to `renkei-s3`, before any path is looked at.

use super::activity::Activity;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use renkei_s3::{Door, is_s3};
use renkei_site::Site;
use std::net::IpAddr;
use std::sync::Arc;

/// A router that answers requests of S3, and has others answered by another one.
pub(super) fn first(others: Router, site: Arc<Site>, address: IpAddr, activity: Activity) -> Router {
    let door = Door::new(site, address, Arc::new(activity));
    others.layer(from_fn_with_state(door, answer))
}

async fn answer(State(door): State<Door>, request: Request, others: Next) -> Response {
    let (head, body) = request.into_parts();
    let is_s3 = is_s3(&head);
    let request = Request::from_parts(head, body);
    match is_s3 {
        true => door.answer(request).await.map(Body::new),
        false => others.run(request).await,
    }
}

//! The S3 door beside the others: requests that are signed as those of S3 go to `renkei-s3`, before any path is looked at.

use super::activity::Activity;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use renkei_s3::{is_s3, serve};
use renkei_site::Site;
use renkei_site::files::body::Progress;
use std::net::IpAddr;
use std::sync::Arc;

/// A router that answers requests of S3, and has others answered by another one.
pub(super) fn first(others: Router, site: Arc<Site>, address: IpAddr, activity: Activity) -> Router {
    others.layer(from_fn_with_state((site, address, activity), answer))
}

async fn answer(
    State((site, address, activity)): State<(Arc<Site>, IpAddr, Activity)>,
    request: Request,
    others: Next,
) -> Response {
    let (head, body) = request.into_parts();
    if !is_s3(&head) {
        return others.run(Request::from_parts(head, body)).await;
    }
    let progress: Arc<dyn Progress> = Arc::new(activity);
    serve(site, address, progress, Request::from_parts(head, body)).await.map(Body::new)
}

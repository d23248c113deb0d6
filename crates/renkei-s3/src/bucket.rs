//! Buckets: storages, volumes and folders that the administrator named. Clients make and remove none. Requests name them in the
//! path, or before a name of the PoP that the administrator configured.

use crate::error::refused;
use crate::list::owner;
use crate::session::Session;
use renkei_core::path::is_label;
use renkei_site::Site;
use s3s::dto::{
    Bucket, CreateBucketInput, CreateBucketOutput, DeleteBucketInput, DeleteBucketOutput,
    GetBucketLocationInput, GetBucketLocationOutput, GetBucketVersioningInput, GetBucketVersioningOutput,
    HeadBucketInput, HeadBucketOutput, ListBucketsInput, ListBucketsOutput, Timestamp,
};
use s3s::host::{S3Host, VirtualHost};
use s3s::validation::NameValidation;
use s3s::{S3ErrorCode, S3Response, S3Result};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// The region that all signatures may name another of.
const REGION: &str = "us-east-1";

/// Answers ListBuckets: those that are open to the client.
pub(crate) fn list(session: &Session, input: ListBucketsInput) -> S3Result<S3Response<ListBucketsOutput>> {
    let prefix = input.prefix.clone().unwrap_or_default();
    let names = session.bucket_names().into_iter().filter(|name| name.starts_with(&prefix));
    let bucket = |name| Bucket {
        name: Some(name),
        // Nothing keeps it, and clients want one.
        creation_date: Some(Timestamp::from(UNIX_EPOCH)),
        bucket_region: None,
    };
    let buckets = names.filter(|name| session.look_at_bucket(name).is_ok()).map(bucket).collect();
    Ok(S3Response::new(ListBucketsOutput {
        buckets: Some(buckets),
        owner: Some(owner(session)),
        prefix: input.prefix,
        continuation_token: None,
    }))
}

/// Answers HeadBucket.
pub(crate) fn head(session: &Session, input: &HeadBucketInput) -> S3Result<S3Response<HeadBucketOutput>> {
    session.look_at_bucket(&input.bucket)?;
    let output = HeadBucketOutput { bucket_region: Some(REGION.into()), ..HeadBucketOutput::default() };
    Ok(S3Response::new(output))
}

/// Answers GetBucketLocation.
pub(crate) fn location(
    session: &Session,
    input: &GetBucketLocationInput,
) -> S3Result<S3Response<GetBucketLocationOutput>> {
    session.look_at_bucket(&input.bucket)?;
    Ok(S3Response::new(GetBucketLocationOutput::default()))
}

/// Answers GetBucketVersioning: it was never on.
pub(crate) fn versioning(
    session: &Session,
    input: &GetBucketVersioningInput,
) -> S3Result<S3Response<GetBucketVersioningOutput>> {
    session.look_at_bucket(&input.bucket)?;
    Ok(S3Response::new(GetBucketVersioningOutput::default()))
}

/// Answers CreateBucket.
pub(crate) fn create(
    session: &Session,
    input: &CreateBucketInput,
) -> S3Result<S3Response<CreateBucketOutput>> {
    match session.look_at_bucket(&input.bucket) {
        Ok(()) => Err(refused(S3ErrorCode::BucketAlreadyOwnedByYou, "the bucket is there, and open to you")),
        Err(error) if *error.code() == S3ErrorCode::NoSuchBucket => Err(refused(
            S3ErrorCode::AccessDenied,
            "buckets are storages and volumes; the administrator makes them (renkei storage, renkei volume)",
        )),
        Err(_) => Err(refused(S3ErrorCode::BucketAlreadyExists, "the bucket is there, and not open to you")),
    }
}

/// Answers DeleteBucket.
pub(crate) fn delete(
    session: &Session,
    input: &DeleteBucketInput,
) -> S3Result<S3Response<DeleteBucketOutput>> {
    session.look_at_bucket(&input.bucket)?;
    let message = "buckets are storages and volumes; the administrator removes them";
    Err(refused(S3ErrorCode::AccessDenied, message))
}

/// The names of the PoP below which buckets are hosts.
pub(crate) struct Domains(pub(crate) Arc<Site>);

impl S3Host for Domains {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        Ok(match bucket_of(host, &self.0.last_snapshot().config.s3.domains) {
            Some(bucket) => VirtualHost::new(host).with_bucket(bucket),
            None => VirtualHost::new(host),
        })
    }
}

/// The bucket that a host names below a domain.
fn bucket_of(host: &str, domains: &[String]) -> Option<String> {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let bucket = |domain: &String| name.strip_suffix(domain.as_str())?.strip_suffix('.');
    domains.iter().find_map(bucket).map(str::to_ascii_lowercase)
}

/// The names of buckets are those of storages and volumes.
pub(crate) struct Labels;

impl NameValidation for Labels {
    fn validate_bucket_name(&self, name: &str) -> bool {
        is_label(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_hosts_below_configured_names_alone() {
        let domains = ["s3.kek.jp".to_owned()];
        let bucket = |host: &str| bucket_of(host, &domains);
        assert_eq!(bucket("data.s3.kek.jp:7512").as_deref(), Some("data"));
        for path_style in ["s3.kek.jp", "s3.kek.jp:7512", "pop.kek.jp:7512", "datas3.kek.jp", "localhost"] {
            assert_eq!(bucket(path_style), None, "{path_style}");
        }
    }
}

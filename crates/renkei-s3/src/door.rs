//! The operations of S3 that the door has; s3s answers all others with `NotImplemented`.

use crate::auth::{Secrets, Signed, is_form};
use crate::body::{Incoming, Kept, receive};
use crate::bucket::{Domains, Labels};
use crate::multipart::PartUpload;
use crate::session::{Session, Signer};
use crate::write::{PutUpload, WriteConditions};
use crate::{bucket, copy, delete, list, multipart, read, tagging};
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::http::{Request, Response};
use renkei_site::Site;
use renkei_site::files::body::{Progress, run};
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::dto::*;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError, S3, S3Request, S3Response, S3Result, StdError};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};
use tokio::sync::Semaphore;

/// Largest document in a request: 10,000 parts with checksums have some 3 MB.
const MAX_DOCUMENT_BYTES: usize = 8 << 20;
/// Largest content of a posted form, which is in memory before its signature is known to be good.
const MAX_FORM_BYTES: u64 = 32 << 20;
/// Most forms that come at a time.
static FORMS: Semaphore = Semaphore::const_new(8);
/// Largest fields of a form.
const MAX_FIELD_BYTES: usize = 64 << 10;

/// The limits of what s3s reads into memory.
static LIMITS: LazyLock<Arc<StaticConfigProvider>> =
    LazyLock::new(|| Arc::new(StaticConfigProvider::new(Arc::new(limits()))));

/// The door for the requests of one connection.
#[derive(Clone)]
pub struct Door {
    service: S3Service,
    progress: Arc<dyn Progress>,
}

impl Door {
    /// The door for a client at an address.
    pub fn new(site: Arc<Site>, address: IpAddr, progress: Arc<dyn Progress>) -> Self {
        let operations = Operations { site: site.clone(), address, progress: progress.clone() };
        let mut service = S3ServiceBuilder::new(operations);
        service.set_host(Domains(site.clone()));
        service.set_auth(Secrets(site));
        service.set_access(Signed);
        service.set_validation(Labels);
        service.set_config(LIMITS.clone());
        Door { service: service.build(), progress }
    }

    /// Answers a request of S3.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        StdError: From<B::Error>,
    {
        let is_form = is_form(request.method(), request.headers());
        let form = is_form.then(|| FORMS.try_acquire());
        if matches!(form, Some(Err(_))) {
            return empty(StatusCode::SERVICE_UNAVAILABLE);
        }
        let kept = Kept::default();
        let mut request = request.map(|body| of_s3s(Incoming::new(body, is_form, &self.progress, &kept)));
        request.extensions_mut().insert(kept);
        self.service.call(request).await.unwrap_or_else(|error| {
            tracing::warn!(error = %<HttpError as Into<StdError>>::into(error), "an S3 request was not answered");
            empty(StatusCode::INTERNAL_SERVER_ERROR)
        })
    }
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

fn of_s3s(body: impl hyper::body::Body<Data = Bytes, Error = StdError> + Send + 'static) -> Body {
    Body::http_body_unsync(body)
}

fn limits() -> S3Config {
    let mut limits = S3Config::default();
    limits.xml_max_body_size = MAX_DOCUMENT_BYTES;
    limits.post_object_max_file_size = MAX_FORM_BYTES;
    limits.form_max_field_size = MAX_FIELD_BYTES;
    limits.form_max_fields_size = 4 * MAX_FIELD_BYTES;
    limits.form_max_parts = 100;
    limits
}

/// The operations, for one client.
struct Operations {
    site: Arc<Site>,
    address: IpAddr,
    progress: Arc<dyn Progress>,
}

impl Operations {
    /// Does the work of a request on a thread that may block, in the session of its signer.
    async fn work<I: Send + 'static, O: Send + 'static>(
        &self,
        request: S3Request<I>,
        work: impl FnOnce(&Session, I) -> S3Result<S3Response<O>> + Send + 'static,
    ) -> S3Result<S3Response<O>> {
        let (site, signer) = (self.site.clone(), Signer::of(&request, self.address)?);
        let progress = self.progress.clone();
        run(&self.progress, move || work(&Session::open(site, signer, &*progress)?, request.input)).await
    }
}

#[async_trait::async_trait]
impl S3 for Operations {
    async fn list_buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        self.work(request, bucket::list).await
    }

    async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        self.work(request, |session, input| bucket::head(session, &input)).await
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.work(request, |session, input| bucket::location(session, &input)).await
    }

    async fn get_bucket_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        self.work(request, |session, input| bucket::versioning(session, &input)).await
    }

    async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        self.work(request, |session, input| bucket::create(session, &input)).await
    }

    async fn delete_bucket(
        &self,
        request: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        self.work(request, |session, input| bucket::delete(session, &input)).await
    }

    async fn list_objects(
        &self,
        request: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        self.work(request, list::first).await
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.work(request, list::second).await
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let progress = self.progress.clone();
        self.work(request, move |session, input| read::get(session, input, progress)).await
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        self.work(request, read::head).await
    }

    async fn put_object(
        &self,
        mut request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let (site, signer) = (self.site.clone(), Signer::of(&request, self.address)?);
        let (body, kept) = (request.input.body.take(), Kept::of(&request));
        // The client that waits for `100 Continue` sends nothing before this.
        let progress = self.progress.clone();
        let begin = move || PutUpload::begin(&Session::open(site, signer, &*progress)?, request);
        let upload = run(&self.progress, begin).await?;
        let upload = receive(upload, body, &self.progress, &kept).await?;
        run(&self.progress, move || upload.publish()).await
    }

    async fn copy_object(
        &self,
        request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let conditions = WriteConditions::of(&request.headers)?;
        self.work(request, move |session, input| copy::answer(session, input, &conditions)).await
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.work(request, delete::one).await
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        self.work(request, delete::many).await
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        self.work(request, multipart::begin).await
    }

    async fn upload_part(
        &self,
        mut request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let (site, signer) = (self.site.clone(), Signer::of(&request, self.address)?);
        let (body, kept) = (request.input.body.take(), Kept::of(&request));
        let progress = self.progress.clone();
        let begin = move || PartUpload::begin(&Session::open(site, signer, &*progress)?, request);
        let upload = run(&self.progress, begin).await?;
        let upload = receive(upload, body, &self.progress, &kept).await?;
        run(&self.progress, move || upload.publish()).await
    }

    async fn upload_part_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        self.work(request, multipart::copy_part).await
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        self.work(request, multipart::complete).await
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.work(request, |session, input| multipart::abort(session, &input)).await
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        self.work(request, multipart::list_parts).await
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        self.work(request, multipart::list_uploads).await
    }

    async fn get_object_tagging(
        &self,
        request: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        self.work(request, tagging::get).await
    }

    async fn put_object_tagging(
        &self,
        request: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        self.work(request, tagging::put).await
    }

    async fn delete_object_tagging(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        self.work(request, tagging::delete).await
    }
}

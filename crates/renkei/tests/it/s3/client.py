"""Checks the S3 door with boto3: ENDPOINT BUCKET ACCESS-KEY SECRET-KEY CHECK [ARGUMENT...]"""

import hashlib
import http.client
import io
import json
import ssl
import sys
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.client import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

endpoint, bucket, access, secret, check, *arguments = sys.argv[1:]
unverified = ssl.create_default_context()
unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE


def client(access=access, secret=secret, **options):
    options = {"s3": {"addressing_style": "path"}, "retries": {"max_attempts": 1}, "signature_version": "s3v4", **options}
    return boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id=access, aws_secret_access_key=secret,
        region_name="us-east-1", verify=False, config=Config(**options))


s3 = client()


def refused(code, call, status=None, **given):
    """The call fails with this code."""
    try:
        call(**given)
    except ClientError as error:
        found = error.response["Error"]["Code"]
        assert found in (code, str(status)), f"{found} and not {code}: {error}"
        return error.response
    raise AssertionError(f"not refused with {code}: {given}")


def body(key, **given):
    return s3.get_object(Bucket=bucket, Key=key, **given)["Body"].read()


def keys(**given):
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, **given)
    return [item["Key"] for page in pages for item in page.get("Contents", [])]


def folders():
    """The prefixes of the first level."""
    return [one["Prefix"] for one in s3.list_objects_v2(Bucket=bucket, Delimiter="/").get("CommonPrefixes", [])]


def objects():
    """Objects: written, read, listed, copied, removed."""
    assert bucket in [one["Name"] for one in s3.list_buckets()["Buckets"]]
    s3.head_bucket(Bucket=bucket)
    refused("404", s3.head_bucket, Bucket="none")
    assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] is None
    refused("BucketAlreadyOwnedByYou", s3.create_bucket, Bucket=bucket)
    refused("AccessDenied", s3.create_bucket, Bucket="fresh")
    refused("AccessDenied", s3.delete_bucket, Bucket=bucket)
    content = b"hello, world"
    put = s3.put_object(
        Bucket=bucket, Key="run 7/ä/a.txt", Body=content, ContentType="text/plain", CacheControl="no-cache",
        Metadata={"colour": "blue"}, Tagging="a=1&b=x%20y")
    etag = put["ETag"]
    assert etag == f'"{hashlib.md5(content).hexdigest()}"', etag
    got = s3.get_object(Bucket=bucket, Key="run 7/ä/a.txt")
    assert got["Body"].read() == content and got["ETag"] == etag
    assert (got["ContentType"], got["CacheControl"], got["Metadata"]) == ("text/plain", "no-cache", {"colour": "blue"})
    assert got["TagCount"] == 2
    tags = s3.get_object_tagging(Bucket=bucket, Key="run 7/ä/a.txt")["TagSet"]
    assert tags == [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "x y"}], tags
    s3.put_object_tagging(Bucket=bucket, Key="run 7/ä/a.txt", Tagging={"TagSet": [{"Key": "c", "Value": "3"}]})
    assert len(s3.get_object_tagging(Bucket=bucket, Key="run 7/ä/a.txt")["TagSet"]) == 1
    s3.delete_object_tagging(Bucket=bucket, Key="run 7/ä/a.txt")
    assert s3.get_object_tagging(Bucket=bucket, Key="run 7/ä/a.txt")["TagSet"] == []
    part = s3.get_object(Bucket=bucket, Key="run 7/ä/a.txt", Range="bytes=7-")
    assert part["Body"].read() == b"world" and part["ContentRange"] == "bytes 7-11/12"
    assert body("run 7/ä/a.txt", Range="bytes=-5") == b"world"
    refused("InvalidRange", s3.get_object, Bucket=bucket, Key="run 7/ä/a.txt", Range="bytes=12-")
    refused("304", s3.get_object, Bucket=bucket, Key="run 7/ä/a.txt", IfNoneMatch=etag)
    refused("PreconditionFailed", s3.get_object, Bucket=bucket, Key="run 7/ä/a.txt", IfMatch='"x"')
    refused("NoSuchKey", s3.get_object, Bucket=bucket, Key="none")
    refused("404", s3.head_object, Bucket=bucket, Key="run 7/ä")
    # Conditions of writes.
    refused("PreconditionFailed", s3.put_object, Bucket=bucket, Key="run 7/ä/a.txt", Body=b"x", IfNoneMatch="*")
    refused("PreconditionFailed", s3.put_object, Bucket=bucket, Key="run 7/ä/a.txt", Body=b"x", IfMatch='"x"')
    s3.put_object(Bucket=bucket, Key="run 7/ä/a.txt", Body=b"second", IfMatch=etag)
    head = s3.head_object(Bucket=bucket, Key="run 7/ä/a.txt")
    assert head["ContentLength"] == 6 and head["Metadata"] == {}, head
    s3.put_object(Bucket=bucket, Key="new", Body=b"", IfNoneMatch="*")
    assert s3.head_object(Bucket=bucket, Key="new")["ContentLength"] == 0
    # Copies.
    s3.put_object(Bucket=bucket, Key="from", Body=b"copied", ContentType="text/x", Metadata={"m": "1"})
    copied = s3.copy_object(Bucket=bucket, Key="to/there", CopySource={"Bucket": bucket, "Key": "from"})
    assert copied["CopyObjectResult"]["ETag"] == s3.head_object(Bucket=bucket, Key="from")["ETag"]
    there = s3.get_object(Bucket=bucket, Key="to/there")
    assert (there["Body"].read(), there["ContentType"], there["Metadata"]) == (b"copied", "text/x", {"m": "1"})
    refused("InvalidRequest", s3.copy_object, Bucket=bucket, Key="from", CopySource={"Bucket": bucket, "Key": "from"})
    s3.copy_object(
        Bucket=bucket, Key="from", CopySource={"Bucket": bucket, "Key": "from"}, MetadataDirective="REPLACE",
        Metadata={"m": "2"})
    assert s3.head_object(Bucket=bucket, Key="from")["Metadata"] == {"m": "2"} and body("from") == b"copied"
    # Conditions on the destination.
    def copy(conditions):
        headers = {"x-amz-copy-source": f"{bucket}/from", **conditions}
        return send("PUT", f"{endpoint}/{bucket}/to/there", signed("PUT", f"/{bucket}/to/there", headers=headers))[:2]

    second = s3.put_object(Bucket=bucket, Key="to/there", Body=b"second")["ETag"]
    assert copy({"If-None-Match": "*"}) == (412, "PreconditionFailed")
    assert copy({"If-Match": copied["CopyObjectResult"]["ETag"]}) == (412, "PreconditionFailed")
    assert copy({"If-None-Match": second}) == (501, "NotImplemented")
    assert body("to/there") == b"second"
    assert copy({"If-Match": second}) == (200, "") and body("to/there") == b"copied"
    # Removal; directories that were made for keys go with the last one.
    s3.delete_object(Bucket=bucket, Key="to/there")
    s3.delete_object(Bucket=bucket, Key="to/there")
    gone = s3.delete_objects(
        Bucket=bucket, Delete={"Objects": [{"Key": key} for key in ("from", "new", "none", "run 7/ä/a.txt")]})
    assert len(gone["Deleted"]) == 4 and "Errors" not in gone, gone
    assert keys() == [], keys()


def names():
    """What plain files cannot hold, and folders."""
    s3.put_object(Bucket=bucket, Key="a", Body=b"file")
    refused("KeyConflict", s3.put_object, Bucket=bucket, Key="a/b", Body=b"x")
    s3.put_object(Bucket=bucket, Key="d/e/f", Body=b"x")
    refused("KeyConflict", s3.put_object, Bucket=bucket, Key="d/e", Body=b"x")
    refused("NoSuchKey", s3.get_object, Bucket=bucket, Key="a/b")
    for bad in ("x//y", "../x", "x/../y", "./x", "x/.", "//"):
        refused("InvalidArgument", s3.put_object, Bucket=bucket, Key=bad, Body=b"x")
        refused("NoSuchKey", s3.get_object, Bucket=bucket, Key=bad)
    refused("KeyTooLongError", s3.put_object, Bucket=bucket, Key="n" * 256, Body=b"x")
    refused("KeyTooLongError", s3.put_object, Bucket=bucket, Key="k/" * 513, Body=b"x")
    s3.put_object(Bucket=bucket, Key="folder/", Body=b"")
    refused("InvalidArgument", s3.put_object, Bucket=bucket, Key="other/", Body=b"content")
    assert s3.head_object(Bucket=bucket, Key="folder/")["ContentLength"] == 0
    assert keys() == ["a", "d/e/f", "folder/"], keys()
    s3.put_object(Bucket=bucket, Key="folder/in", Body=b"x")
    assert keys() == ["a", "d/e/f", "folder/in"]
    s3.delete_object(Bucket=bucket, Key="folder/in")
    assert keys(Prefix="folder") == ["folder/"]
    s3.delete_object(Bucket=bucket, Key="folder/")
    s3.delete_object(Bucket=bucket, Key="d/e/f")
    s3.delete_object(Bucket=bucket, Key="a")
    assert keys() == []


def lists():
    """Pages in the order of bytes."""
    made = sorted(
        [f"wide/{n:04}" for n in range(1500)] + ["wide-1", "wide.txt", "wide0", "a b+c", "ü/x", "w/1/2/3"],
        key=lambda key: key.encode())
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: s3.put_object(Bucket=bucket, Key=key, Body=b"x"), made))
    assert keys() == made
    assert keys(PaginationConfig={"PageSize": 7}, Prefix="wide") == [key for key in made if key.startswith("wide")]
    assert keys(StartAfter="wide/1490") == [key for key in made if key.encode() > b"wide/1490"]
    page = s3.list_objects_v2(Bucket=bucket, MaxKeys=3)
    # What comes and goes between two pages is seen at once.
    s3.put_object(Bucket=bucket, Key="wide-2", Body=b"x")
    s3.delete_object(Bucket=bucket, Key="wide.txt")
    page = s3.list_objects_v2(Bucket=bucket, MaxKeys=2, ContinuationToken=page["NextContinuationToken"])
    assert [one["Key"] for one in page["Contents"]] == ["wide-2", "wide/0000"], page["Contents"]
    s3.delete_object(Bucket=bucket, Key="wide-2")
    s3.put_object(Bucket=bucket, Key="wide.txt", Body=b"x")
    page = s3.list_objects_v2(Bucket=bucket, Delimiter="/")
    assert [one["Prefix"] for one in page["CommonPrefixes"]] == ["w/", "wide/", "ü/"], page["CommonPrefixes"]
    assert [one["Key"] for one in page["Contents"]] == ["a b+c", "wide-1", "wide.txt", "wide0"]
    found, token = [], {}
    while True:
        page = s3.list_objects_v2(Bucket=bucket, Delimiter="/", MaxKeys=2, **token)
        found += [one["Key"] for one in page.get("Contents", [])]
        found += [one["Prefix"] for one in page.get("CommonPrefixes", [])]
        assert page["KeyCount"] <= 2
        if not page["IsTruncated"]:
            break
        token = {"ContinuationToken": page["NextContinuationToken"]}
    assert sorted(found) == sorted(["a b+c", "w/", "wide-1", "wide.txt", "wide/", "wide0", "ü/"]), found
    page = s3.list_objects(Bucket=bucket, Delimiter="1", Prefix="wide/0")
    assert "wide/01" in [one["Prefix"] for one in page["CommonPrefixes"]], page["CommonPrefixes"]
    first = s3.get_paginator("list_objects").paginate(Bucket=bucket, PaginationConfig={"PageSize": 400})
    assert [item["Key"] for page in first for item in page["Contents"]] == made
    etags = {item["Key"]: item["ETag"] for item in s3.list_objects_v2(Bucket=bucket, Prefix="wide-1")["Contents"]}
    assert etags["wide-1"] == s3.head_object(Bucket=bucket, Key="wide-1")["ETag"]
    for start in range(0, len(made), 1000):
        batch = [{"Key": key} for key in made[start:start + 1000]]
        assert "Errors" not in s3.delete_objects(Bucket=bucket, Delete={"Objects": batch, "Quiet": True})
    assert keys() == []


def checksums():
    """Checksums in headers and trailers, and those that are wrong."""
    content = bytes(range(256)) * 9000
    for algorithm in ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"):
        # A stream is sent in chunks with the checksum behind it.
        for sent in (content, io.BytesIO(content)):
            put = s3.put_object(Bucket=bucket, Key=algorithm, Body=sent, ChecksumAlgorithm=algorithm)
            name = f"Checksum{algorithm}"
            head = s3.head_object(Bucket=bucket, Key=algorithm, ChecksumMode="ENABLED")
            assert head[name] == put[name] and head["ChecksumType"] == "FULL_OBJECT", head
            got = s3.get_object(Bucket=bucket, Key=algorithm, ChecksumMode="ENABLED")
            assert got["Body"].read() == content
    refused("BadDigest", s3.put_object, Bucket=bucket, Key="bad", Body=b"x", ChecksumCRC32="AAAAAA==")
    refused("BadDigest", s3.put_object, Bucket=bucket, Key="bad", Body=b"x", ContentMD5="AAAAAAAAAAAAAAAAAAAAAA==")
    refused("InvalidDigest", s3.put_object, Bucket=bucket, Key="bad", Body=b"x", ContentMD5="no")
    refused("404", s3.head_object, Bucket=bucket, Key="bad")
    # Directories that were made for a key that failed are no keys, and gone.
    s3.put_object(Bucket=bucket, Key="kept/", Body=b"")
    for key in ("made/for/it", "kept/for/it"):
        refused("BadDigest", s3.put_object, Bucket=bucket, Key=key, Body=b"x", ChecksumCRC32="AAAAAA==")
    assert folders() == ["kept/"] and keys(Prefix="kept") == ["kept/"], (folders(), keys())
    for key in keys():
        s3.delete_object(Bucket=bucket, Key=key)


def parts():
    """Uploads in parts."""
    content = hashlib.sha256(b"seed").digest() * (13 << 15)
    config = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)
    for algorithm in ("CRC32", "CRC64NVME", "SHA256"):
        given = {"ChecksumAlgorithm": algorithm, "ContentType": "text/big", "Metadata": {"m": "1"}}
        s3.upload_fileobj(io.BytesIO(content), bucket, "deep/big", ExtraArgs=given, Config=config)
        got = s3.get_object(Bucket=bucket, Key="deep/big", ChecksumMode="ENABLED")
        assert got["Body"].read() == content and got["ETag"].endswith('-3"'), got["ETag"]
        assert (got["ContentType"], got["Metadata"]) == ("text/big", {"m": "1"})
        assert f"Checksum{algorithm}" in got, got
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    assert [one["Key"] for one in s3.list_multipart_uploads(Bucket=bucket)["Uploads"]] == ["k"]
    own = {"Bucket": bucket, "Key": "k", "UploadId": upload}
    tags = {n: s3.upload_part(PartNumber=n, Body=bytes([n]) * (5 << 20), **own)["ETag"] for n in (1, 2)}
    tags[3] = s3.upload_part_copy(
        PartNumber=3, CopySource={"Bucket": bucket, "Key": "deep/big"}, CopySourceRange="bytes=0-9",
        **own)["CopyPartResult"]["ETag"]
    listed = s3.list_parts(**own)["Parts"]
    assert [(one["PartNumber"], one["Size"]) for one in listed] == [(1, 5 << 20), (2, 5 << 20), (3, 10)], listed
    named = [{"PartNumber": n, "ETag": tags[n]} for n in (1, 2, 3)]

    def complete(parts, **given):
        return s3.complete_multipart_upload(MultipartUpload={"Parts": parts}, **own, **given)

    refused("InvalidPartOrder", complete, parts=[named[1], named[0]])
    refused("InvalidPart", complete, parts=[named[0], {"PartNumber": 2, "ETag": '"x"'}])
    refused("InvalidPart", complete, parts=[named[0], {"PartNumber": 4, "ETag": tags[3]}])
    refused("EntityTooSmall", complete, parts=[named[2], {"PartNumber": 5, "ETag": s3.upload_part(
        PartNumber=5, Body=b"end", **own)["ETag"]}])
    refused("404", s3.head_object, Bucket=bucket, Key="k")
    done = complete(named, IfNoneMatch="*")
    md5 = hashlib.md5(b"".join(bytes.fromhex(tag.strip('"')) for tag in tags.values())).hexdigest()
    assert done["ETag"] == f'"{md5}-3"', done["ETag"]
    assert body("k")[-10:] == content[:10]
    refused("NoSuchUpload", complete, parts=named)
    upload = s3.create_multipart_upload(Bucket=bucket, Key="abandoned/k")["UploadId"]
    own = {"Bucket": bucket, "Key": "abandoned/k", "UploadId": upload}
    assert "abandoned/" not in keys(), "the folder of an upload that goes on"
    s3.upload_part(PartNumber=1, Body=b"x", **own)
    s3.put_object(Bucket=bucket, Key="abandoned/other", Body=b"x")
    s3.delete_object(Bucket=bucket, Key="abandoned/other")
    s3.upload_part(PartNumber=2, Body=b"x", **own)
    assert "abandoned/" not in keys()
    s3.abort_multipart_upload(**own)
    assert "abandoned/" not in folders(), folders()
    refused("NoSuchUpload", s3.upload_part, PartNumber=1, Body=b"x", **own)
    for key in keys():
        s3.delete_object(Bucket=bucket, Key=key)
    assert keys() == [], keys()


def send(method, url, headers=None, content=b""):
    """A request as it is; its status and the error's code."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPSConnection(parts.netloc, context=unverified, timeout=60)
    path = parts.path + ("?" + parts.query if parts.query else "")
    connection.request(method, path, body=content, headers=headers or {})
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    code = text.split("<Code>")[1].split("</Code>")[0] if "<Code>" in text else ""
    return answer.status, code, text


def signed(method, path, content=b"", secret=secret, stamp=None, payload=None, headers=None):
    """A request with a signature by hand."""
    request = AWSRequest(method, endpoint + path, data=content, headers=headers or {})
    request.headers["X-Amz-Content-SHA256"] = payload or hashlib.sha256(content).hexdigest()
    signer = S3SigV4Auth(Credentials(access, secret), "s3", "us-east-1")
    signer.add_auth(request)
    return dict(request.headers.items())


def presigned():
    """Presigned links and forms."""
    put = s3.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "by link"}, ExpiresIn=60)
    assert send("PUT", put, content=b"linked")[0] == 200
    get = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "by link"}, ExpiresIn=60)
    assert send("GET", get)[::2] == (200, "linked")
    assert send("GET", get.replace("by%20link", "other"))[1] == "SignatureDoesNotMatch"
    assert send("PUT", get, content=b"x")[1] == "SignatureDoesNotMatch"
    # A header that makes a copy of an upload is not signed.
    s3.put_object(Bucket=bucket, Key="secret", Body=b"secret")
    stolen = send("PUT", put, {"x-amz-copy-source": f"{bucket}/secret"})
    assert stolen[:2] == (403, "AccessDenied"), stolen
    assert body("by link") == b"linked"
    long = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "by link"}, ExpiresIn=700000)
    assert send("GET", long)[0] in (400, 403)
    form = s3.generate_presigned_post(bucket, "by form", Conditions=[["content-length-range", 1, 100]])
    def post(content, fields=form["fields"]):
        lines = "".join(
            f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items())
        end = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + content + b"\r\n--b--\r\n"
        return send("POST", form["url"], {"Content-Type": "multipart/form-data; boundary=b"}, lines.encode() + end)
    assert post(b"posted")[0] in (200, 204), post(b"posted")
    assert body("by form") == b"posted"
    assert post(b"x" * 101)[1] == "EntityTooLarge", post(b"x" * 101)
    assert post(b"x", {**form["fields"], "key": "other"})[1] == "InvalidPolicyDocument"
    assert post(b"x", {"key": "anonymous"})[0] == 403
    for key in keys():
        s3.delete_object(Bucket=bucket, Key=key)


def hostile():
    """Signatures and content that are wrong."""
    refused("SignatureDoesNotMatch", client(secret="0" * 40).list_objects_v2, Bucket=bucket)
    refused("InvalidAccessKeyId", client(access="RK" + "0" * 18).list_objects_v2, Bucket=bucket)
    refused("InvalidRequest", client(access="../../../pki/ca").list_objects_v2, Bucket=bucket)
    try:
        client(signature_version="s3").list_objects_v2(Bucket=bucket)
        raise AssertionError("a signature of version 2 was accepted")
    except ClientError as error:
        assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 403, error
    second = client(signature_version="s3").generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "x"})
    assert send("GET", second)[:2] == (403, "AccessDenied"), send("GET", second)
    url = f"{endpoint}/{bucket}/x"
    headers = signed("PUT", f"/{bucket}/x", b"signed")
    assert send("PUT", url, headers, b"sIgned")[1] == "XAmzContentSHA256Mismatch"
    refused("404", s3.head_object, Bucket=bucket, Key="x")
    assert send("PUT", url, headers, b"signed")[0] == 200
    old = {**headers, "X-Amz-Date": "20200101T000000Z"}
    old["Authorization"] = old["Authorization"].replace(headers["X-Amz-Date"][:8], "20200101")
    assert send("PUT", url, old, b"signed")[:2] == (403, "RequestTimeTooSkewed"), send("PUT", url, old, b"signed")
    unsigned = send("PUT", url, {**headers, "x-amz-tagging": "a=b"}, b"signed")
    assert unsigned[1] == "AccessDenied", unsigned
    # 5 GB are announced, and then the connection is cut.
    parts = urllib.parse.urlsplit(endpoint)
    connection = http.client.HTTPSConnection(parts.netloc, context=unverified, timeout=60)
    connection.putrequest("PUT", f"/{bucket}/huge", skip_host=False)
    cut = signed("PUT", f"/{bucket}/huge", payload="UNSIGNED-PAYLOAD")
    for name, value in {**cut, "Content-Length": str(5 << 30)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    connection.send(b"x" * (3 << 20))
    connection.close()
    refused("404", s3.head_object, Bucket=bucket, Key="huge")
    assert send("GET", f"{endpoint}/{bucket}/..%2f..%2fetc%2fpasswd", signed("GET", f"/{bucket}/..%2f..%2fetc%2fpasswd"))[0] in (403, 404)
    s3.delete_object(Bucket=bucket, Key="x")
    assert keys() == []


def changed():
    """A file that was changed behind renkei's back: KEY ETAG-BEFORE."""
    key, before = arguments
    head = s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    assert head["ETag"] != before and "ChecksumCRC32" not in head, head
    refused("PreconditionFailed", s3.get_object, Bucket=bucket, Key=key, IfMatch=before)


def put():
    """Puts KEY TEXT; prints the ETag."""
    key, text = arguments
    print(s3.put_object(Bucket=bucket, Key=key, Body=text.encode())["ETag"])


def get():
    """Prints KEY."""
    print(body(arguments[0]).decode(), end="")


def listed():
    """Prints all keys."""
    print(json.dumps(keys()))


def clear():
    """Removes all keys."""
    for key in keys():
        s3.delete_object(Bucket=bucket, Key=key)


def denied():
    """CODE for a read of KEY."""
    refused(arguments[0], s3.get_object, Bucket=bucket, Key=arguments[1])


def denied_put():
    """CODE for a write of KEY."""
    refused(arguments[0], s3.put_object, Bucket=bucket, Key=arguments[1], Body=b"x")


def virtual():
    """A bucket as a host: DOMAIN."""
    request = AWSRequest("GET", f"https://{bucket}.{arguments[0]}/")
    request.headers["X-Amz-Content-SHA256"] = hashlib.sha256(b"").hexdigest()
    S3SigV4Auth(Credentials(access, secret), "s3", "us-east-1").add_auth(request)
    headers = {**dict(request.headers.items()), "Host": f"{bucket}.{arguments[0]}"}
    status, code, text = send("GET", endpoint + "/", headers)
    assert status == 200 and f"<Name>{bucket}</Name>" in text, (status, text)


globals()[check]()

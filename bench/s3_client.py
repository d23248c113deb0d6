#!/usr/bin/env python3
"""A client of S3 that costs little: it signs by version 4 and keeps one TLS connection for each of its processes.

    s3_client.py make ADDRESS BUCKET                 makes the bucket, if it is not there
    s3_client.py put|get ADDRESS BUCKET COUNT BYTES CLIENTS FOLDER
    s3_client.py list ADDRESS BUCKET PAGES           lists all keys in pages of 1,000, or so many pages

The keys are in the environment (S3_ACCESS, S3_SECRET). One line of JSON is printed.
"""

import datetime
import hashlib
import hmac
import http.client
import json
import multiprocessing
import os
import re
import ssl
import sys
import threading
import time
import urllib.parse

REGION, SERVICE = "us-east-1", "s3"
UNSIGNED = "UNSIGNED-PAYLOAD"


def signed_headers(method, host, path, query, now, keys, content_hash=UNSIGNED):
    """The headers of a signed request; `path` and `query` are encoded already, the words of `query` in order."""
    moment = now.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{moment[:8]}/{REGION}/{SERVICE}/aws4_request"
    headers = {"host": host, "x-amz-content-sha256": content_hash, "x-amz-date": moment}
    names = ";".join(headers)
    listed = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = "\n".join([method, path, query, listed, names, content_hash])
    to_sign = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = ("AWS4" + keys[1]).encode()
    for word in (moment[:8], REGION, SERVICE, "aws4_request"):
        key = hmac.digest(key, word.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    headers["authorization"] = (f"AWS4-HMAC-SHA256 Credential={keys[0]}/{scope}, SignedHeaders={names}, "
                                f"Signature={signature}")
    return headers


class Client:
    """One connection."""

    def __init__(self, address, keys):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.host, self.keys = address, keys
        self.connection = http.client.HTTPSConnection(address, context=context, timeout=120)

    def ask(self, method, path, query="", body=None):
        """The body of the answer; RuntimeError if it is no success."""
        now = datetime.datetime.now(datetime.timezone.utc)
        headers = signed_headers(method, self.host, path, query, now, self.keys)
        self.connection.request(method, f"{path}?{query}" if query else path, body, headers)
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status // 100 != 2:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:300]!r}")
        return content


def percentile(times, share):
    """The time that this share of requests stays below."""
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


def worker(verb, address, bucket, folder, numbers, size, keys, begin, results):
    """Requests one after the other; their seconds go to `results`."""
    try:
        client, body, times = Client(address, keys), os.urandom(size), []
        client.ask("HEAD", f"/{bucket}")
        begin.wait()
        for number in numbers:
            path = f"/{bucket}/{folder}/object-{number:06}"
            at = time.monotonic()
            if verb == "put":
                client.ask("PUT", path, "", body)
            elif len(client.ask("GET", path)) != size:
                raise RuntimeError(f"{path}: not {size} bytes")
            times.append(time.monotonic() - at)
        results.put((times, None))
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        begin.abort()
        results.put(([], f"{type(error).__name__}: {error}"))


def many(verb, address, bucket, count, size, clients, folder, keys):
    """Requests by many clients at once."""
    begin, results = multiprocessing.Barrier(clients + 1), multiprocessing.SimpleQueue()
    children = [multiprocessing.Process(target=worker, args=(verb, address, bucket, folder, range(first, count, clients), size,
                                                             keys, begin, results)) for first in range(clients)]
    for child in children:
        child.start()
    try:
        begin.wait(120)
    except threading.BrokenBarrierError:
        pass
    at = time.monotonic()
    found = [results.get() for _ in children]
    seconds = time.monotonic() - at
    for child in children:
        child.join()
    errors = [error for _, error in found if error]
    if errors:
        raise RuntimeError(errors[0])
    times = [one for times, _ in found for one in times]
    shown = {name: round(1000 * percentile(times, share), 2) for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {"seconds": round(seconds, 3), "rate": round(len(times) / seconds, 1), **shown}


def listed(address, bucket, pages, keys):
    """All keys in pages, in order; seconds of the first page and of all."""
    client = Client(address, keys)
    client.ask("HEAD", f"/{bucket}")
    token, count, last, times = None, 0, "", []
    begin = time.monotonic()
    while len(times) < pages or not pages:
        query = "list-type=2" if token is None else f"continuation-token={urllib.parse.quote(token, safe='')}&list-type=2"
        at = time.monotonic()
        text = client.ask("GET", f"/{bucket}", query).decode()
        times.append(time.monotonic() - at)
        names = re.findall("<Key>([^<]*)</Key>", text)
        if any(a >= b for a, b in zip([last, *names], names)):
            raise RuntimeError("the keys are not in order")
        count, last = count + len(names), names[-1] if names else last
        found = re.search("<NextContinuationToken>([^<]*)</NextContinuationToken>", text)
        token = found and found.group(1).replace("&amp;", "&")
        if not token:
            break
    return {"keys": count, "pages": len(times), "first_ms": round(1000 * times[0], 1),
            "page_ms": round(1000 * percentile(times, 0.5), 1), "seconds": round(time.monotonic() - begin, 3)}


def main():
    keys = (os.environ["S3_ACCESS"], os.environ["S3_SECRET"])
    verb, address, bucket, *rest = sys.argv[1:]
    try:
        if verb == "make":
            names = Client(address, keys).ask("GET", "/").decode()
            if f"<Name>{bucket}</Name>" not in names:
                Client(address, keys).ask("PUT", f"/{bucket}")
            found = {}
        elif verb == "list":
            found = listed(address, bucket, int(rest[0]), keys)
        else:
            count, size, clients, folder = rest
            found = many(verb, address, bucket, int(count), int(size), int(clients), folder, keys)
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()

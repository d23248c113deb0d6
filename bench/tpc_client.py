"""Has a server fetch files from another one by COPY (HTTP-TPC), many at a time: a client as FTS, without its queue.

Usage: tpc_client.py PLAN ITEM TARGET. PLAN is a JSON file with the URL of the folder `target` and that of `source`, the
tokens of both, if they ask for one, the folder of the source and the number of copies at a time. ITEM is a file or tree
below the source, TARGET the folder below which it arrives.
"""

import http.client
import json
import os
import queue
import ssl
import sys
import threading
import urllib.parse

MARKERS = 300  # seconds between two markers at most


def files(folder, item):
    """The files of an item, by their paths below the folder."""
    path = os.path.join(folder, item)
    if not os.path.isdir(path):
        return [item]
    found = (os.path.join(at, name) for at, _, names in os.walk(path) for name in names)
    return sorted(os.path.relpath(one, folder) for one in found)


def headers(plan, name):
    """The headers of one copy."""
    made = {"Source": f"{plan['source']}/{urllib.parse.quote(name)}", "Credential": "none"}
    if plan.get("target_token"):
        made["Authorization"] = f"Bearer {plan['target_token']}"
    if plan.get("source_token"):
        made["TransferHeaderAuthorization"] = f"Bearer {plan['source_token']}"
    return made


def outcome(text):
    """The error that the last line of the markers tells, or None."""
    last = text.strip().rsplit("\n", 1)[-1]
    return None if last.startswith("success") else last or "no result"


def run(plan, folder, names):
    """Copies until no name is left; returns the first error."""
    url = urllib.parse.urlsplit(plan["target"])
    context = ssl._create_unverified_context()
    while True:
        try:
            name = names.get_nowait()
        except queue.Empty:
            return None
        connection = http.client.HTTPSConnection(url.hostname, url.port, timeout=MARKERS, context=context)
        path = f"{url.path}/{urllib.parse.quote(os.path.join(os.path.basename(folder), name))}"
        connection.request("COPY", path, headers=headers(plan, name))
        answer = connection.getresponse()
        error = outcome(answer.read().decode(errors="replace"))
        connection.close()
        if error:
            return f"{name}: {answer.status} {error}"


def main(plan_file, item, folder):
    with open(plan_file) as text:
        plan = json.load(text)
    names, errors = queue.Queue(), []
    for name in files(plan["folder"], item):
        directory = os.path.dirname(os.path.join(folder, name))
        if not os.path.isdir(directory):
            os.makedirs(directory)
            os.chmod(directory, 0o777)
        names.put(name)
    threads = [threading.Thread(target=lambda: errors.append(run(plan, folder, names))) for _ in range(plan["copies"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [error for error in errors if error] + ["a thread failed"] * (len(threads) - len(errors))
    return failed[0] if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

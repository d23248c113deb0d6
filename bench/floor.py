"""What encryption and digest cost alone: seconds of one processor per GB, from the project's own `crypto_floor`.

The program is built beside renkei (`cargo build --release --example crypto_floor`) and prints one line of JSON:
seconds per GB to seal, to open and to hash, with the buffers renkei uses and nothing else.
"""

import json
import os
import statistics

from bench.measure import Fail, output

FIELDS = ("seal_s_per_gb", "open_s_per_gb", "hash_s_per_gb")


def program(options):
    """Where it is, or None."""
    beside = os.path.join(os.path.dirname(options.renkei), "examples", "crypto_floor")
    found = options.crypto_floor or beside
    return found if os.access(found, os.X_OK) else None


def measure(options):
    """The median of three runs of each figure, or why there is none."""
    path = program(options)
    if not path:
        return {"missing": "crypto_floor is not built"}
    try:
        runs = [json.loads(output(path).strip().splitlines()[-1]) for _ in range(3)]
        return {field: round(statistics.median(run[field] for run in runs), 4) for field in FIELDS}
    except (Fail, ValueError, KeyError, IndexError) as error:
        return {"missing": f"crypto_floor: {error}"}


def seconds(found):
    """Seal, open and hash at both ends together, or None."""
    return sum(found[field] for field in FIELDS) if found and FIELDS[0] in found else None

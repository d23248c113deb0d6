"""What encryption and digest cost alone: seconds of one processor per GB, from the project's own `crypto_floor`.

The program is built beside renkei (`cargo build --release --example crypto_floor`) and prints one line of JSON: seconds
per GB to seal, to open and to hash once, with the buffers renkei uses and nothing else. A copy that is checked at both
ends is sealed and opened once and hashed twice.
"""

import json
import os

from bench.measure import Fail, output

FIELDS = ("seal_s_per_gb", "open_s_per_gb", "hash_s_per_gb")
BYTES = "400000000"  # of each of its rounds, of which it takes the best


def program(options):
    """Where it is, or None."""
    beside = os.path.join(os.path.dirname(options.renkei), "examples", "crypto_floor")
    found = options.crypto_floor or beside
    return found if os.access(found, os.X_OK) else None


def measure(options):
    """What it says, or why there is nothing."""
    path = program(options)
    if not path:
        return {"missing": "crypto_floor is not built"}
    try:
        said = json.loads(output(path, BYTES).strip().splitlines()[-1])
        return {field: round(said[field], 4) for field in FIELDS}
    except (Fail, ValueError, KeyError, IndexError) as error:
        return {"missing": f"crypto_floor: {error}"}


def seconds(found):
    """Seal, open, and the digest at both ends, or None."""
    if not found or FIELDS[0] not in found:
        return None
    return found["seal_s_per_gb"] + found["open_s_per_gb"] + 2 * found["hash_s_per_gb"]
